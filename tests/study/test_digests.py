import pytest
from small_studies import digests


def test_every_run_has_its_own_digest(plan_of):
    assert len(set(digests(plan_of()))) == 10


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: small", "name: other"),
        ("epochs: 2", "epochs: 2, device: cpu"),
        ("epochs: 2", "epochs: 2, lr_decay: 0.96"),  # a default, spelt out
        ("epochs: 2", "epochs: 2, steps: null, match: null"),
        ("{conv_channels: 16}", "{conv_channels: 16, primary_types: 32}"),  # another
        ("{conv_channels: 16}", "{name: capsnet, conv_channels: 16}"),
        ("{conv_channels: 8}", "{conv_channels: 8, loss: {name: margin, weight: 1.0}, transform: full}"),
        ("model: capsnet", "model: capsnet\n    label: CapsNet"),
        ("name: small", "name: small\ndescription: words"),
        ("name: small", "name: small\nplots: []\ntables: []\nevaluations: [accuracy]\ntracking: false"),
    ],
)
def test_digest_stays_where_no_result_changes(plan_of, old, new):
    assert digests(plan_of(old, new)) == digests(plan_of())


def test_digest_changes_with_the_network_to_match(plan_of):
    assert digests(plan_of("conv_channels: 16", "conv_channels: 17"))[-1] != digests(plan_of())[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs: 2", "epochs: 3"),
        ("shift: 1", "shift: 0"),
        ("epochs: 2", "epochs: 2, threads: 2"),
        ("epochs: 2", "epochs: 2, deterministic: true"),
        ("epochs: 2", "steps: 74"),
        ("epochs: 2", "epochs: 2, schedule: scaled"),
        ("epochs: 2", "epochs: 2, l2: 1e-7"),
        ("validation_images: 100", "validation_images: 99"),
        ("validation_images: 100", "validation_images: 100, split_seed: 1"),
        ("validation_images: 100", "validation_images: 100, train_images: 900"),
        ("conv_channels: 8", "conv_channels: 9"),
        ("conv_channels: 8", "conv_channels: 8, routing: {detach: true}"),
        ("conv_channels: 8", "conv_channels: 8, routing: em"),
        ("conv_channels: 8", "conv_channels: 8, loss: {weight: 2.0}"),
    ],
)
def test_digest_changes_with_whatever_decides_a_result(plan_of, old, new):
    assert digests(plan_of(old, new))[0] != digests(plan_of())[0]
