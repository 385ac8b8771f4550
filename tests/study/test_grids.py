import pytest
from small_studies import ONE, problem_of

from capsbench.registry import MODELS


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        ("routing: [dynamic]", ["dynamic"]),
        ("routing: [uniform, random]", ["uniform", "random"]),
        ("routing: [dynamic, {name: em, iterations: 2}]", ["dynamic", "em"]),
        ("routing: [em, {name: em, iterations: 2}]", ["em", "em_iterations2"]),
        ("routing.detach: [false, true]", ["no_detach", "detach"]),
        ("decoder: [null, fully_connected]", ["no_decoder", "fully_connected"]),
        ("decoder: [null, {hidden: [8]}, {hidden: [9]}]", ["no_decoder", "decoder_hidden8", "decoder_hidden9"]),
        ("decoder: [null, {hidden: [8]}]", ["no_decoder", "decoder_hidden8"]),
        ("decoder.hidden: [[8, 16], [8]]", ["hidden8_16", "hidden8"]),
        ("weight_std: [0.05]", ["weight_std0.05"]),
        ("training.batch_size: [32]", ["batch_size32"]),
        ("training.augmentation: [{shift: 0}]", ["augmentation_shift0"]),
    ],
)
def test_variants_of_a_grid_are_named_after_its_values(runs_of, axis, names):
    runs = runs_of(f"{{model: capsnet, grid: {{{axis}}}}}")
    assert [run.variant for run in runs] == [f"v-{name}" for name in names]


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        (
            "ROUTINGS, routing.iterations: [1, 3]",
            ["dynamic-iterations1", "dynamic-iterations3", "em-iterations1", "em-iterations3"],
        ),
        (
            "routing.iterations: [1, 3], ROUTINGS",
            ["iterations1-dynamic", "iterations1-em", "iterations3-dynamic", "iterations3-em"],
        ),
    ],
)
def test_a_group_and_an_option_in_it_are_two_axes_in_any_order(runs_of, axes, names):
    grid = axes.replace("ROUTINGS", "routing: [dynamic, {name: em, damping: 0.5}]")
    runs = runs_of(f"{{model: capsnet, grid: {{{grid}}}}}")
    assert [run.variant for run in runs] == [f"v-{name}" for name in names]
    for run in runs:
        routing = run.options["routing"]
        assert routing["name"] in run.variant and f"iterations{routing['iterations']}" in run.variant
        assert routing.get("damping") == (0.5 if routing["name"] == "em" else None)


def test_a_grid_over_an_option_keeps_the_others_of_its_group(runs_of):
    runs = runs_of("{model: capsnet, options: {routing: {name: em, damping: 0.5}}, grid: {routing.iterations: [1, 2]}}")
    found = [run.options["routing"] for run in runs]
    assert [(r["name"], r["damping"], r["iterations"]) for r in found] == [("em", 0.5, 1), ("em", 0.5, 2)]


@pytest.mark.parametrize(
    ("variant", "labels"),
    [
        ("{model: capsnet}", ["v"]),
        ("{model: capsnet, label: CapsNet}", ["CapsNet"]),
        ("{model: capsnet, grid: {routing.iterations: [1, 3]}}", ["v-iterations1", "v-iterations3"]),
        (
            "{model: capsnet, label: CapsNet, grid: {routing.iterations: [1], decoder: [null, fully_connected]}}",
            ["CapsNet, iterations 1, no decoder", "CapsNet, iterations 1, decoder fully connected"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {routing: [variational_bayes, {name: em, iterations: 2}]}}",
            ["CapsNet, variational Bayes routing", "CapsNet, EM routing"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {routing: [self, heinsen]}}",
            ["CapsNet, self-routing", "CapsNet, Heinsen routing"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {routing: [em, {name: em, iterations: 2}]}}",
            ["CapsNet, EM routing", "CapsNet, EM routing iterations 2"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {decoder: [null, {hidden: [8, 16]}]}}",
            ["CapsNet, no decoder", "CapsNet, decoder hidden 8 16"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {routing.detach: [true, false], training.lr_decay: [0.5]}}",
            ["CapsNet, detach, lr decay 0.5", "CapsNet, no detach, lr decay 0.5"],
        ),
    ],
)
def test_a_label_is_followed_by_the_place_in_the_grid(runs_of, variant, labels):
    runs = runs_of(variant)
    assert [run.label for run in runs] == labels
    assert len({run.key for run in runs}) == len(labels)


@pytest.mark.parametrize("label", ["''", "3", "x" * 61])
def test_a_label_is_a_short_text(path, label):
    assert problem_of(path, ONE.replace("VARIANT", f"{{model: capsnet, label: {label}}}")).startswith(
        "variants.v.label: "
    )


def test_a_network_to_match_has_all_its_options(plan_of):
    matched_to = plan_of().run("digits/cnn/seed0").options["matched_to"]
    assert matched_to == MODELS.options("capsnet")(conv_channels=16).plain()


def test_another_network_to_match_has_its_own_options(options_of):
    given = options_of("{matched_to: {name: resnet20, widths: [4, 16], blocks: 1}}", "cnn_matched")["matched_to"]
    assert given == MODELS.options("resnet20")(widths=(4, 16), blocks=1).plain()


def test_networks_to_match_are_an_axis_of_a_grid(plan_of):
    axis = "grid: {matched_to: [{conv_channels: 16}, {routing: {name: em, damping: 0.5}}]}"
    plan = plan_of("options: {matched_to: {conv_channels: 16}}", axis)
    names = ["cnn-matched_to_conv_channels16", "cnn-matched_to_em_damping0.5"]
    assert [run.variant for run in plan.runs][-4::2] == names
    assert plan.runs[-1].options["matched_to"]["routing"]["damping"] == 0.5
