import pytest
import torch
from stereo_pairs import PAPER, drawn, offsets, raw_of

from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks import centred, stereo


def tasks(name="smallnorb-centred", split="train", **options):
    """The task of a data set and smallNORB's own, of the same pairs."""
    facts, raw = CATALOGUE[name], raw_of(side=facts_side(options))
    chosen = facts.options(**options)
    assert facts.task is centred.make_task
    return [make(raw, split, chosen, torch.device("cpu")) for make in (facts.task, stereo.make_task)], raw


def facts_side(options):
    return 64 if options.get("resize") == "bilinear_64" else 48


@pytest.mark.parametrize("name", ["smallnorb-centred", "toynorb-centred"])
@pytest.mark.parametrize(
    ("options", "place"), [({}, 8), ({"crop": 28}, 10), ({"crop": 48}, 0), ({"resize": "bilinear_64", "crop": 48}, 8)]
)
def test_training_sees_the_middle_of_each_image(name, options, place):
    (task, _), raw = tasks(name, **options)
    for seed in (0, 1):
        assert (offsets(raw, drawn(task, seed=seed).targets) == place).all()


def test_training_sees_what_the_test_sees_but_for_contrast():
    (task, usual), _ = tasks()
    items = torch.arange(40)
    seen, test = drawn(task), task.eval_batch(items, 0)
    torch.testing.assert_close(seen.images, test.images)
    assert torch.equal(seen.targets, test.targets)
    assert torch.equal(seen.labels, test.labels)
    assert torch.equal(test.images, usual.eval_batch(items, 0).images)
    changed = drawn(task, PAPER)
    assert torch.equal(changed.targets, seen.targets)
    assert not torch.equal(changed.images, seen.images)
    assert not torch.equal(drawn(task, PAPER, seed=1).images, changed.images)


def test_brightness_and_contrast_are_drawn_as_with_random_crops():
    """What is drawn for the crop is drawn from a stream of its own, so that nothing else changes with it."""
    (task, usual), _ = tasks(crop=48)  # one place only
    assert torch.equal(drawn(task, PAPER).images, drawn(usual, PAPER).images)


def test_the_test_may_show_13_crops():
    (task, usual), _ = tasks(split="test", test_crops=13)
    assert task.views == usual.views == 13
    items = torch.arange(40)
    assert torch.equal(task.eval_batch(items, 7).images, usual.eval_batch(items, 7).images)
    (task, _), _ = tasks(split="train", test_crops=13)
    assert task.views == 1


@pytest.mark.parametrize("name", ["smallnorb", "toynorb"])
def test_all_else_is_as_in_the_data_set_itself(name):
    own, usual = CATALOGUE[f"{name}-centred"], CATALOGUE[name]
    for fact in (
        "read",
        "select",
        "download",
        "folder",
        "options",
        "train_items",
        "test_items",
        "augmentation",
        "clusters",
    ):
        assert getattr(own, fact) == getattr(usual, fact)
    assert (own.paper, own.in_stereo) == ("smallnorb", True)
