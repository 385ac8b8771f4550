import numpy as np
import pytest
import torch
from small_data import CPU
from stereo_pairs import PAPER, drawn, offsets, raw_of

from capsbench.data import Raw
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks import centred, stereo


def tasks(name="smallnorb-centred", split="train", **options):
    """The task of a data set and smallNORB's own, of the same pairs."""
    facts, raw = CATALOGUE[name], raw_of(side=facts_side(options))
    chosen = facts.options(**options)
    assert facts.task is centred.make_task
    return [make(raw, split, chosen, CPU) for make in (facts.task, stereo.make_task)], raw


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
    """Stripes two pixels apart have the same values in every crop, so that these tell the contrast alone."""
    greys = np.random.default_rng(0).integers(0, 256, (40, 2, 1, 2), dtype=np.uint8)
    raw, options = Raw(np.tile(greys, (1, 1, 48, 24)), np.arange(40) % 5), stereo.NorbOptions()

    def values(make, seed=0):
        return drawn(make(raw, "train", options, CPU), PAPER, seed).images.flatten(1).sort(dim=1).values

    own = values(centred.make_task)
    torch.testing.assert_close(own, values(stereo.make_task))
    assert (own - values(stereo.make_task, seed=1)).abs().max() > 0.1


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
    facts = "read select download folder options train_items test_items augmentation clusters"
    for fact in facts.split():
        assert getattr(own, fact) == getattr(usual, fact)
    assert (own.paper, own.in_stereo) == ("smallnorb", True)
