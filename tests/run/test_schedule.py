import pytest

from capsbench.run.schedule import Schedule, learning_rate
from capsbench.study import Training


def rate(step, steps_per_epoch=100, **options):
    return learning_rate(Training(**options), step, steps_per_epoch)


def test_the_papers_decay():
    assert rate(0) == 0.001
    assert rate(2000) == pytest.approx(0.001 * 0.96)
    assert rate(1000) == pytest.approx(0.001 * 0.96**0.5)
    assert rate(10**7) == 1e-6


def test_options_of_the_decay():
    assert rate(1999, lr_decay_staircase=True) == 0.001
    assert rate(2000, lr_decay_staircase=True) == pytest.approx(0.001 * 0.96)
    assert rate(300, lr_decay_unit="epoch", lr_decay_every=1) == pytest.approx(0.001 * 0.96**3)
    assert rate(10**7, lr_floor=1e-4) == 1e-4
    assert [rate(s, warmup_steps=4) / rate(s) for s in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])


def test_a_scaled_schedule_decays_over_any_length_as_over_the_one_it_is_written_for():
    short = Schedule(Training(steps=300, schedule="scaled"), 128)
    assert (short.steps, short.stretch) == (300, 1000)
    for share in (0, 0.25, 0.5, 1):
        assert short.learning_rate(round(300 * share)) == pytest.approx(rate(round(300_000 * share)))
    assert short.learning_rate(300) == pytest.approx(2.2e-6, rel=0.01)  # where S17's authors end
    own = Schedule(Training(steps=300, schedule="scaled", schedule_steps=600), 128)
    assert own.learning_rate(300) == pytest.approx(rate(600))
    assert Schedule(Training(steps=300), 128).learning_rate(300) == rate(300)


def test_a_scaled_schedule_counts_epochs_alike_and_leaves_the_warm_up():
    by_epoch = {"lr_decay_unit": "epoch", "lr_decay_every": 1}
    scaled = Schedule(Training(steps=100, schedule="scaled", schedule_steps=1000, warmup_steps=4, **by_epoch), 1280)
    assert scaled.steps_per_epoch == 10
    assert scaled.learning_rate(50) == pytest.approx(rate(500, steps_per_epoch=10, **by_epoch))
    assert scaled.learning_rate(0) == pytest.approx(0.25 * 0.001)


@pytest.mark.parametrize(
    ("length", "images", "steps", "epochs"),
    [({"epochs": 3}, 100, 12, 3), ({"steps": 5}, 100, 5, 2), ({"steps": 4}, 96, 4, 2), ({}, 60_000, 300_000, 160)],
)
def test_the_length_in_steps_and_in_epochs(length, images, steps, epochs):
    schedule = Schedule(Training(batch_size=32, **length), images)
    assert (schedule.steps, schedule.epochs) == (steps, epochs)
