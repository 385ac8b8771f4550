import pytest
from studies import FULL, ours_of

from capsbench.registry import MODELS, ROUTINGS


@pytest.fixture
def rows_of(make_plan, made):
    """The rows of variants beside CapsNet, each given as YAML."""

    def make(*variants: str):
        plan = make_plan(FULL + "".join(f"  v{n}: {variant}\n" for n, variant in enumerate(variants)))
        return ours_of(made("sabour-table1", plan).numbers).iloc[1:]

    return make


@pytest.mark.parametrize("name", MODELS.names())
def test_every_network_has_its_title(rows_of, name):
    method = rows_of(f"{{model: {name}}}")["method"].iloc[0]
    assert method.split(" (matrix pose")[0] == MODELS[name].title


@pytest.mark.parametrize("name", ROUTINGS.names())
def test_a_routing_that_was_chosen_has_its_title(rows_of, name):
    shown = rows_of(f"{{model: capsnet, options: {{routing: {name}}}}}")["routing"].iloc[0]
    iterations = getattr(ROUTINGS.options(name)(), "iterations", "")
    assert shown == ("3" if name == "dynamic" else f"{ROUTINGS[name].title} {iterations}".strip())


@pytest.mark.parametrize(
    ("model", "routing"),
    [
        ("deepcaps", "dynamic 3"),
        ("{options: {iterations: 2}, model: deepcaps}", "dynamic 2"),
        ("efficient_capsnet", "attention"),
        ("self_routing_capsnet", "self-routing"),
        ("matrix_capsnet", "3"),
        ("{options: {routing: {iterations: 5}}, model: matrix_capsnet}", "5"),
        ("resnet20", "-"),
    ],
)
def test_networks_with_a_routing_of_their_own_name_it(rows_of, model, routing):
    assert list(rows_of(model if "{" in model else f"{{model: {model}}}")["routing"]) == [routing]


@pytest.mark.parametrize(
    ("routing", "loss", "method"),
    [
        ("dynamic", "margin", "CapsNet"),
        ("dynamic", "share_likelihood", "CapsNet (share likelihood loss; dynamic's paper: margin)"),
        ("em", "margin", "CapsNet (margin loss; EM's paper: spread)"),
        ("em", "spread", "CapsNet (spread loss)"),
        ("self", "share_likelihood", "CapsNet (share likelihood loss)"),
        ("heinsen", "spread", "CapsNet (spread loss; Heinsen's paper: cross-entropy)"),
        ("heinsen", "cross_entropy", "CapsNet (cross-entropy loss)"),
        ("uniform", "margin", "CapsNet"),
        ("uniform", "spread", "CapsNet (spread loss)"),
    ],
)
def test_a_loss_that_is_not_that_of_the_routings_paper_is_named_with_it(rows_of, routing, loss, method):
    rows = rows_of(f"{{model: capsnet, options: {{routing: {routing}, loss: {loss}}}}}")
    assert list(rows["method"]) == [method]


def test_reconstruction_is_a_matter_of_the_decoder(rows_of):
    rows = rows_of(
        "{model: capsnet, options: {decoder: null}}",
        "{model: efficient_capsnet, options: {decoder: convolutional}}",
        "{model: self_routing_capsnet}",
    )
    assert list(rows["reconstruction"]) == ["no", "yes", "-"]


def test_matrix_capsules_are_told_apart_by_what_the_paper_varies(novel, made):
    methods = list(ours_of(made("hinton-table2", novel).numbers)["method"])
    assert methods == [
        "matrix capsules (matrix pose, spread loss, with coordinates)",
        "CNN (H18)",
    ]


def test_capsnets_are_told_apart_by_loss_and_routing(make_plan, made):
    variants = "  em: {model: capsnet, options: {routing: {name: em, iterations: 2}, loss: spread}}\n"
    plan = make_plan(FULL + variants + "  uniform: {model: capsnet, options: {routing: uniform}}\n")
    table = ours_of(made("sabour-table1", plan).numbers)
    assert list(table["method"]) == ["CapsNet", "CapsNet (spread loss)", "CapsNet"]
    assert list(table["routing"]) == ["3", "EM 2", "uniform"]
    assert list(table["published"]) == ["0.25 ± 0.005", "", ""]
