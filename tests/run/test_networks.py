from pathlib import Path

import pytest

from capsbench.errors import InputError
from capsbench.run.networks import check_networks
from capsbench.study import load_plan

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
STUDY = """\
name: study
seeds: [0]
experiments: {digits: {data: {name: digits}}}
variants:
  good: {model: capsnet}
  bad: {model: capsnet, options: {transform: {name: grouped, groups: 7}}}
"""


@pytest.fixture
def plan_of(tmp_path):
    def load(text):
        (tmp_path / "study.yaml").write_text(text)
        return load_plan(tmp_path / "study.yaml")

    return load


def test_networks_that_cannot_be_built_are_found_before_anything_trains(plan_of):
    with pytest.raises(InputError, match=r"digits/bad: 1152 capsules .* 7 groups") as caught:
        check_networks(plan_of(STUDY), "digits")
    assert "\n" not in str(caught.value)
    check_networks(plan_of(STUDY.replace("groups: 7", "groups: 8")), "digits")


def test_bfloat16_of_a_network_without_convolutions_is_refused_before_anything_trains(plan_of):
    text = STUDY.replace("seeds:", "training: {precision: bfloat16}\nseeds:")
    check_networks(plan_of(text.replace("groups: 7", "groups: 8")), "digits")
    with pytest.raises(InputError, match="digits/good: precision bfloat16 is of convolutions, and group_capsnet has"):
        check_networks(plan_of(text.replace("good: {model: capsnet}", "good: {model: group_capsnet}")), "digits")


def test_networks_of_other_experiments_are_not_built(plan_of):
    other = "experiments: {other: {data: {name: digits}, variants: [good]}, digits"
    plan = plan_of(STUDY.replace("experiments: {digits", other))
    check_networks(plan, "other")
    with pytest.raises(InputError, match="digits/bad"):
        check_networks(plan, "digits")


def test_a_network_that_cannot_be_matched_names_the_other(plan_of):
    text = STUDY.replace("capsnet, options: {", "cnn_matched, options: {matched_to: {").replace("7}}}", "7}}}}")
    with pytest.raises(InputError, match=r"digits/bad: .*matched_to: 1152 capsules .* 7 groups"):
        check_networks(plan_of(text), "digits")


@pytest.mark.parametrize("study", CONFIGS, ids=lambda path: path.stem)
def test_every_network_of_the_shipped_studies_can_be_built(study):
    plan = load_plan(study)
    for experiment in plan.study.experiments:
        check_networks(plan, experiment)


def test_a_width_that_is_a_slip_is_found_before_anything_trains(plan_of):
    text = STUDY.replace("options: {transform: {name: grouped, groups: 7}}", "options: {conv_channels: 1000000}")
    with pytest.raises(InputError, match=r"digits/bad: a network of \d\d,\d{3},\d{3},\d{3} parameters, more than 1,0"):
        check_networks(plan_of(text), "digits")


def test_a_loss_that_cannot_take_several_classes_is_found_before_anything_trains(plan_of):
    pairs = STUDY.replace("{name: digits}", "{name: multimnist}").replace("transform: {name: grouped, groups: 7}", "{}")
    for loss, refused in (("spread", True), ("margin", False), ("share_likelihood", False), ("cross_entropy", False)):
        plan = plan_of(pairs.replace("{{}}", f"{{loss: {loss}}}"))
        if not refused:
            check_networks(plan, "digits")
            continue
        with pytest.raises(InputError, match=r"digits/bad: the spread loss takes one class per image; .* 'margin'"):
            check_networks(plan, "digits")


def test_a_network_for_one_class_is_refused_on_pairs_before_anything_trains(plan_of):
    pairs = STUDY.replace("{name: digits}", "{name: multimnist}")
    bad = pairs.replace("{model: capsnet, options: {transform: {name: grouped, groups: 7}}}", "{model: scae}")
    assert bad != pairs
    with pytest.raises(
        InputError, match="digits/bad: scae is for one class per image, and images of multimnist show 2"
    ):
        check_networks(plan_of(bad), "digits")


@pytest.mark.parametrize("model", ["efficient_capsnet", "deepcaps"])
def test_batch_norm_without_running_statistics_is_refused(plan_of, model):
    bad = STUDY.replace(
        "capsnet, options: {transform: {name: grouped, groups: 7}}", f"{model}, options: {{batch_norm_momentum: 0}}"
    )
    assert bad != STUDY
    with pytest.raises(InputError, match="batch_norm_momentum"):
        plan_of(bad)
