from pathlib import Path

import pytest
import yaml

from capsbench.analysis import published
from capsbench.analysis.published import counterpart, read_published
from capsbench.registry import MODELS, flat_options
from capsbench.study import Training, catalogue

TABLES = ("S17 Table 1",)
# typed from Table 1 of Sabour, Frosst, Hinton 2017: (model, iterations, decoder) -> MNIST error, std; MultiMNIST
MNIST = {
    ("cnn_sabour_mnist", None, None): (0.39, None),
    ("capsnet", 1, None): (0.34, 0.032),
    ("capsnet", 1, "fully_connected"): (0.29, 0.011),
    ("capsnet", 3, None): (0.35, 0.036),
    ("capsnet", 3, "fully_connected"): (0.25, 0.005),
}
MULTIMNIST = {
    ("cnn_sabour_multimnist", None, None): (8.1, None),
    ("capsnet", 1, "fully_connected"): (7.5, None),
    ("capsnet", 3, "fully_connected"): (5.2, None),
}
# typed from Hinton, Sabour, Frosst 2018: (iterations, pose, loss, coordinates) -> smallNORB error of Table 1
SMALLNORB = {
    (1, "matrix", "spread", True): 9.7,
    (2, "matrix", "spread", True): 2.2,
    (3, "matrix", "spread", True): 1.8,
    (5, "matrix", "spread", True): 3.9,
    (3, "vector", "spread", True): 2.9,
    (3, "matrix", "spread", False): 2.6,
    (3, "vector", "spread", False): 3.2,
    (3, "matrix", "margin", True): 3.2,
    (3, "matrix", "cross_entropy", True): 5.8,
}
# (view, model) -> novel and familiar error of Table 2
VIEWPOINTS = {
    ("azimuth", "cnn_hinton_norb"): (20, 3.7),
    ("azimuth", "matrix_capsnet"): (13.5, 3.7),
    ("elevation", "cnn_hinton_norb"): (17.8, 4.3),
    ("elevation", "matrix_capsnet"): (12.3, 4.3),
}
# accuracies in % of S17's section 5.2: affNIST, the translated test
AFFNIST = {"capsnet": (79, 99.23), "cnn_matched": (66, 99.22)}


@pytest.mark.parametrize(("data_set", "expected"), [("mnist", MNIST), ("multimnist", MULTIMNIST)])
def test_values_are_those_of_the_paper(data_set, expected):
    found = {
        (p.model, *(flat_options(p.options).get(name) for name in ("routing.iterations", "decoder"))): (p.error, p.std)
        for p in read_published()
        if (p.paper, p.table) == ("S17", "Table 1") and p.requirements["data_set"] == data_set
    }
    assert found == expected


def test_values_with_a_std_are_of_three_trials():
    assert {p.n for p in read_published() if p.std is not None} == {3}


@pytest.mark.parametrize(
    ("index", "text"), [(0, "0.34 ± 0.032"), (1, "0.29 ± 0.011"), (2, "0.35 ± 0.036"), (3, "0.25 ± 0.005"), (4, "0.39")]
)
def test_the_counterpart_of_a_run_is_the_value_of_its_method(runs_of, index, text):
    assert str(counterpart(runs_of()[index], TABLES)) == text


@pytest.mark.parametrize("data", ["{name: digits}", "{name: mnist, train_images: 5000}"])
def test_a_method_keeps_its_row_on_other_data(runs_of, data):
    runs = runs_of(("{name: mnist}", data))
    assert [str(counterpart(run, TABLES)) for run in runs[3:]] == ["0.25 ± 0.005", "0.39"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("routing.iterations: [1, 3]", "routing.iterations: [2]"), ("model: cnn_sabour_mnist", "model: cnn_matched")],
)
def test_a_method_that_is_not_in_the_paper_has_no_counterpart(runs_of, old, new):
    changed = [run for run in runs_of((old, new)) if run not in runs_of()]
    assert changed
    assert {counterpart(run, TABLES) for run in changed} == {None}


def test_no_value_is_found_for_another_table(runs_of):
    assert counterpart(runs_of()[3], ("S17 Table 2",)) is None


def of(paper, table):
    return [p for p in read_published() if (p.paper, p.table) == (paper, table)]


def test_values_of_matrix_capsules_are_those_of_the_paper():
    names = ("routing.iterations", "pose", "loss", "coordinate_addition")
    found = {True: {}, False: {}}  # one crop at test?
    for p in of("H18", "Table 1"):
        one_crop = p.requirements["data_options"] == {"view": "full", "test_crops": 1}
        found[one_crop][tuple(flat_options(p.options).get(name) for name in names) if p.options else p.model] = p.error
    assert found[True] == SMALLNORB | {"cnn_hinton_norb": 5.2}
    assert found[False] == {(3, "matrix", "spread", True): 1.4}


def test_values_on_novel_viewpoints_are_those_of_the_paper():
    found = of("H18", "Table 2")
    views = {(p.requirements["data_options"]["view"], p.model): (p.error, p.familiar) for p in found}
    assert views == VIEWPOINTS
    for p in found:  # both networks stop where their familiar errors are those of the table
        assert p.requirements["training"]["stop_at_familiar_accuracy"] == pytest.approx(1 - p.familiar / 100)


def test_values_on_affnist_are_the_papers_accuracies():
    found = {p.model: p for p in of("S17", "section 5.2")}
    errors = {model: (100 - p.error, pytest.approx(100 - p.familiar)) for model, p in found.items()}
    assert errors == AFFNIST
    assert found["capsnet"].requirements["training"]["stop_at_familiar_accuracy"] == 0.9923


def test_every_published_value_can_be_run():
    for p in read_published():
        assert p.model in MODELS.names()
        options = MODELS.options(p.model)(**p.options).plain()  # refuses what the model does not have
        assert flat_options(p.options).items() <= flat_options(options).items()
        facts = catalogue()[p.requirements["data_set"]]
        assert facts.paper == facts.name  # no stand-in
        data_options = p.requirements.get("data_options", {})
        assert facts.options(**data_options).model_dump().items() >= data_options.items()
        training = p.requirements.get("training", {})
        assert Training(**training).model_dump().items() >= training.items()
        assert p.requirements["train_images_at_least"] <= facts.training_items(facts.options(**data_options))
        assert (p.familiar is not None) == facts.has_familiar_test(facts.options(**data_options))


def test_every_protocol_is_that_of_a_value():
    raw = yaml.safe_load(Path(published.__file__).with_name("published.yaml").read_text())
    assert set(raw["protocols"]) == {p.protocol for p in read_published()}
    assert {p.paper for p in read_published()} == set(raw["papers"])


@pytest.mark.parametrize(
    ("data", "model", "tables", "error"),
    [
        ("{name: smallnorb, options: {test_crops: 13}}", "matrix_capsnet", "H18 Table 1", 1.4),
        ("{name: smallnorb, options: {test_crops: 13}}", "cnn_hinton_norb", "H18 Table 1", None),
        ("{name: smallnorb, options: {test_crops: 13}}", "capsnet", "S17 section 7", 2.7),
        ("{name: smallnorb, options: {view: azimuth}}", "matrix_capsnet", "H18 Table 1", None),
        ("{name: smallnorb, options: {view: azimuth}}", "matrix_capsnet", "H18 Table 2", 13.5),
        ("{name: smallnorb, options: {view: elevation}}", "matrix_capsnet", "H18 Table 2", 12.3),
        ("{name: toynorb, options: {view: elevation}}", "cnn_hinton_norb", "H18 Table 2", 17.8),
        ("{name: smallnorb}", "matrix_capsnet", "H18 Table 2", None),
        ("{name: affnist-generated}", "capsnet", "S17 section 5.2", 21),
        ("{name: mnist-translated}", "capsnet", "S17 section 5.2", None),
        ("{name: mnist-translated}", "capsnet", "S17 Table 1", None),
    ],
)
def test_a_value_is_of_one_task(run_on, data, model, tables, error):
    found = counterpart(run_on(data, f"{{model: {model}}}"), (tables,))
    assert (found.error if found else None) == error
