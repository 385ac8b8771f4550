"""Which images a protocol shows, and that unchanged ones are those of the test to the bit."""

import pytest
import torch
from small_tasks import task_of

from capsbench.evaluation import collect_predictions
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.chosen import as_seen, chosen_images, error_of, scores_of, whole_images
from capsbench.models import build_model


def test_the_draw_is_stratified_nested_and_the_same_each_time():
    task = task_of()
    few, more = chosen_images(task, 10), chosen_images(task, 33)
    assert torch.equal(few, chosen_images(task, 10))
    assert task.labels[few].bincount().tolist() == [2] * 5
    assert set(task.labels[more].bincount().tolist()) <= {6, 7}
    assert set(few.tolist()) < set(more.tolist())
    assert torch.equal(more, more.sort().values)
    assert torch.equal(chosen_images(task, 1000), torch.arange(60))


def test_of_pairs_both_labels_come_along():
    task = task_of("multidigits", test_pairs=40)
    chosen = chosen_images(task, 12)
    assert len(chosen.unique()) == 12
    assert task.labels[chosen].shape == (12, 2)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("digits", (1, 28, 28), {}),
        ("affdigits", (1, 28, 28), {"transforms_per_image": 2}),
        ("multidigits", (1, 28, 28), {"test_pairs": 20}),
        ("smallnorb", (2, 48, 48), {}),
        ("smallnorb", (2, 48, 48), {"augment": "after_standardising", "standardise_by": "training_set"}),
        ("cifar10", (3, 32, 32), {"crop": 24, "standardise": True}),
    ],
)
def test_whole_images_become_what_the_network_sees(name, shape, options):
    task = task_of(name, 20, shape, **options)
    indices = torch.tensor([3, 7, 11])
    whole = whole_images(task, indices)
    assert whole.min() >= 0 and whole.max() <= 1
    expected = task.eval_batch(indices, 0).images
    torch.testing.assert_close(as_seen(task, whole), expected, atol=1e-5, rtol=1e-5)
    assert (as_seen(task, whole.flip(3)) - expected).abs().max() > 0.1


@pytest.mark.parametrize(("name", "shape", "options"), [
    ("digits", (1, 28, 28), {}), ("multidigits", (1, 28, 28), {"test_pairs": 30}),
    ("smallnorb", (2, 48, 48), {"test_crops": 13}),
])  # fmt: skip
def test_unchanged_images_score_as_in_the_test_to_the_bit(name, shape, options):
    task = task_of(name, 40, shape, **options)
    seen = task.eval_batch(torch.arange(1), 0).images.shape[1:]
    model = build_model("capsnet", tuple(seen), 10, conv_channels=4, primary_types=1, decoder=None).eval()
    every = torch.arange(len(task.labels))
    scores = scores_of(model, task, every)
    predictions = collect_predictions(model, task)
    assert torch.equal(scores, predictions.scores)
    assert error_of(scores, task, every) == count_errors(predictions)["error"]


def test_what_is_drawn_is_drawn_again_for_each_crop():
    task = task_of("smallnorb", 8, (2, 48, 48), test_crops=13)
    model = build_model("cnn_hinton_norb", (2, 32, 32), 5, conv_channels=(4, 4), hidden=8).eval()
    drawn = []

    def change(images, rng):
        drawn.append(torch.rand(3, generator=rng))
        return images

    scores = scores_of(model, task, torch.arange(8), change, lambda: torch.Generator().manual_seed(5))
    assert len(drawn) == 13
    assert all(torch.equal(drawn[0], each) for each in drawn)
    torch.testing.assert_close(scores, scores_of(model, task, torch.arange(8)), atol=1e-5, rtol=1e-4)
