"""`split`: whether all runs of an experiment are trained on the same images, or each seed on images of its own."""

import pytest

from capsbench.errors import InputError
from capsbench.study import load_plan

STUDY = """
name: a
seeds: [0, 1, 7]
experiments: {e: {data: {name: affdigits, DATA}, training: {epochs: 1}}}
variants:
  cnn: {model: cnn_matched}
  caps: {model: capsnet, training: {match: cnn}}
"""


def plan_of(tmp_path, data):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.replace("DATA", data))
    return load_plan(path)


def seeds_of(plan, variant="cnn"):
    return [run.data.split_seed for run in plan.runs if run.variant == variant]


def test_all_runs_see_the_same_images_unless_the_study_says_otherwise(tmp_path):
    assert seeds_of(plan_of(tmp_path, "train_images: 500, split_seed: 3")) == [3, 3, 3]


def test_each_seed_may_draw_its_own_images(tmp_path):
    plan = plan_of(tmp_path, "train_images: 500, split: per_seed")
    assert seeds_of(plan) == seeds_of(plan, "caps") == [0, 1, 7]  # variants at one seed share them
    assert seeds_of(plan_of(tmp_path, "validation_images: 50, split: per_seed, split_seed: 100")) == [100, 101, 107]
    assert seeds_of(plan_of(tmp_path, "train_images: 500, split: per_seed, split_seed: 2147483647"))[1] == 0


def test_the_same_images_are_the_same_training(tmp_path):
    """A digest is of what is trained: neither the default nor another way to the same images changes it."""
    fixed, own = (plan_of(tmp_path, f"train_images: 500, split: {split}").runs for split in ("fixed", "per_seed"))
    silent = plan_of(tmp_path, "train_images: 500").runs
    assert [run.digest for run in silent] == [run.digest for run in fixed]
    same = [a.digest == b.digest for a, b in zip(fixed, own, strict=True)]
    assert same == [run.seed == 0 for run in fixed]


def test_the_digest_of_a_known_run_stays(tmp_path):
    """That which the same study had before there was `split`."""
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: a\nseeds: [0]\nexperiments: {e: {data: {name: digits, train_images: 500}}}\n"
        "variants: {cnn: {model: resnet20}}\n"
    )
    assert load_plan(path).runs[0].digest == "2f0bd7f58869fff2"


@pytest.mark.parametrize("data", ["split: per_seed", "split: per_seed, validation_images: 0"])
def test_a_split_that_draws_nothing_is_refused(tmp_path, data):
    with pytest.raises(InputError, match=r"per_seed draws nothing.*train_images or validation_images"):
        plan_of(tmp_path, data)
