import pytest
from studies import FULL

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import paper_table
from capsbench.registry import LOSSES, MODELS, ROUTINGS


@pytest.fixture
def rows_of(make_plan, results):
    """The rows of variants beside CapsNet, each given as YAML."""

    def make(*variants: str):
        plan = make_plan(FULL + "".join(f"  v{n}: {variant}\n" for n, variant in enumerate(variants)))
        return paper_table("sabour-table1", plan, collect(plan, results)).iloc[1:]

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


def test_a_loss_that_is_not_the_papers_is_named(rows_of):
    methods = rows_of(*(f"{{model: capsnet, options: {{loss: {loss}}}}}" for loss in ("margin", "share_likelihood")))
    assert list(methods["method"]) == ["CapsNet", f"CapsNet ({LOSSES['share_likelihood'].title} loss)"]


def test_reconstruction_is_a_matter_of_the_decoder(rows_of):
    rows = rows_of(
        "{model: capsnet, options: {decoder: null}}",
        "{model: efficient_capsnet, options: {decoder: convolutional}}",
        "{model: self_routing_capsnet}",
    )
    assert list(rows["reconstruction"]) == ["no", "yes", "-"]


def test_matrix_capsules_are_told_apart_by_what_the_paper_varies(novel):
    assert list(novel["method"]) == ["matrix capsules (matrix pose, spread loss, with coordinates)", "CNN (H18)"]


def test_capsnets_are_told_apart_by_loss_and_routing(make_plan, results):
    variants = "  em: {model: capsnet, options: {routing: {name: em, iterations: 2}, loss: spread}}\n"
    plan = make_plan(FULL + variants + "  uniform: {model: capsnet, options: {routing: uniform}}\n")
    table = paper_table("sabour-table1", plan, collect(plan, results))
    assert list(table["method"]) == ["CapsNet", "CapsNet (spread loss)", "CapsNet"]
    assert list(table["routing"]) == ["3", "EM 2", "uniform"]
    assert list(table["published"].fillna("none")) == ["0.25 ± 0.005", "none", "none"]
