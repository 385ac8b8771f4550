import pytest

from capsbench.analysis.published import claims, counterpart, read_published, rows_without_models
from capsbench.analysis.published_format import PATH, problems, read_file
from capsbench.errors import InputError
from capsbench.models import build_model, count_parameters
from capsbench.registry import MODELS, flat_options
from capsbench.study import catalogue

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
    found = {1: {}, 13: {}}  # by crops at test
    for p in of("H18", "Table 1"):
        row = tuple(flat_options(p.options).get(name) for name in names) if p.options else p.model
        found[p.requirements["task"]["test_crops"]][row] = p.error
    assert found[1] == SMALLNORB | {"cnn_hinton_norb": 5.2}
    assert found[13] == {(3, "matrix", "spread", True): 1.4}


def test_values_on_novel_viewpoints_are_those_of_the_paper():
    found = of("H18", "Table 2")
    views = {(p.requirements["task"]["view"], p.model): (p.error, p.familiar) for p in found}
    assert views == VIEWPOINTS
    assert {p.requirements["match"] for p in found} == {"cnn_hinton_norb"}


def test_values_on_affnist_are_the_papers_accuracies():
    found = {p.model: p for p in of("S17", "section 5.2")}
    assert {model: (p.printed, p.unit) for model, p in found.items()} == {
        "capsnet": ("79", "accuracy"),
        "cnn_matched": ("66", "accuracy"),
    }
    errors = {model: (100 - p.error, pytest.approx(100 - p.familiar)) for model, p in found.items()}
    assert errors == AFFNIST
    assert [str(found[model]) for model in ("capsnet", "cnn_matched")] == ["accuracy 79", "accuracy 66"]
    assert found["capsnet"].requirements["match"] == "cnn_matched"


@pytest.mark.parametrize(
    ("name", "error", "rounding", "margin"),
    [
        ("S17-mnist-3-decoder", 0.25, 0.005, 0.05),  # five of 10,000 test images
        ("S17-multimnist-3-decoder", 5.2, 0.05, 0.52),  # a tenth
        ("S17-affnist-capsnet", 21, 0.5, 2.1),
        ("H18-smallnorb-3", 1.8, 0.05, 0.18),
        ("H18-azimuth-capsules", 13.5, 0.05, 1.35),
        ("R19-mnist", 0.28, 0.005, 0.05),
        ("R19-cifar10", 8.99, 0.005, 0.899),
        ("H18-fgsm-0.2-cnn", 84, 2.0, 8.4),  # read off a figure
    ],
)
def test_rounding_is_half_the_last_digit_and_the_margin_a_tenth_or_five_images(name, error, rounding, margin):
    (p,) = [p for p in read_published() if p.id == name]
    assert (p.error, p.rounding, p.margin) == (error, pytest.approx(rounding), pytest.approx(margin))


# (id, printed, unit): the values that are not in a table that is typed above
@pytest.mark.parametrize(
    ("name", "printed", "unit"),
    [
        ("H18-smallnorb-small", "2.2", "error"),
        ("H18-smallnorb-ciresan", "2.56", "error"),
        ("H18-mnist", "0.44", "error"),
        ("H18-cifar10", "11.9", "error"),
        ("S17-smallnorb", "2.7", "error"),
        ("S17-cifar10", "10.6", "error"),
        ("S17-svhn", "4.3", "error"),
        ("R19-mnist", "99.72", "accuracy"),
        ("R19-cifar10", "91.01", "accuracy"),
        ("R19-cifar10-ensemble", "92.74", "accuracy"),
        ("M21-mnist", "0.26", "error"),
        ("M21-smallnorb", "2.54", "error"),
        ("M21-smallnorb-capsnet", "3.77", "error"),
        ("M21-multimnist", "5.1", "error"),
        ("R20-smallnorb-3", "98.7", "accuracy"),
        ("R20-smallnorb-1", "97.1", "accuracy"),
        ("R20-affnist", "98.1", "accuracy"),
        ("F19-smallnorb", "99.1", "accuracy"),
        ("T20-cifar10", "94.85", "accuracy"),
        ("G20-affnist", "93.21", "accuracy"),
        ("B20-mnist", "0.17", "error"),
    ],
)
def test_other_values_are_those_of_their_papers(name, printed, unit):
    (p,) = [p for p in [*read_published(), *rows_without_models()] if p.id == name]
    assert (p.printed, p.unit) == (printed, unit)


def test_what_was_quoted_from_memory_is_marked():
    marked = {p.id for p in [*read_published(), *rows_without_models()] if p.from_memory}
    assert marked == {"R20-affnist", "M21-smallnorb", "M21-multimnist"}
    (p,) = [p for p in read_published() if p.id == "M21-smallnorb"]
    assert "from memory" in str(p)


def test_accuracies_under_attack_are_those_of_the_figure():
    found = {}
    for p in of("H18", "Figure 3"):
        found.setdefault((p.attack.name, p.model), {})[p.attack.epsilon] = float(p.printed)
    assert found == {
        ("fgsm", "cnn_hinton_norb"): {0.1: 57, 0.2: 16, 0.5: 3},
        ("fgsm", "matrix_capsnet"): {0.1: 86, 0.2: 83, 0.5: 69},
        ("bim", "cnn_hinton_norb"): {0.1: 50, 0.2: 12, 0.5: 5},
        ("bim", "matrix_capsnet"): {0.1: 84, 0.2: 75, 0.5: 55},
    }


def test_every_value_is_in_one_list():
    with_model, without = read_published(), rows_without_models()
    assert {p.id for p in with_model} | {p.id for p in without} == {v.id for v in read_file().values}
    assert all(p.model in MODELS.names() and p.requirements for p in with_model)
    assert all(p.model is None and p.data_set and p.method for p in without)


def test_every_published_value_can_be_run():
    assert list(problems(read_file())) == []
    for p in read_published():
        facts = catalogue()[p.requirements["data_set"]]
        assert facts.paper == facts.name  # no stand-in
        options = facts.options(**p.requirements.get("task", {}))
        assert (p.familiar is not None) == facts.has_familiar_test(options)
        assert ("match" in p.requirements) == facts.has_familiar_test(options)


@pytest.mark.parametrize(
    ("name", "shape", "classes"), [("M21-smallnorb", (2, 48, 48), 5), ("H18-smallnorb-small", (2, 32, 32), 5)]
)
def test_a_network_has_the_published_number_of_parameters(name, shape, classes):
    (p,) = [p for p in read_published() if p.id == name]
    options = p.all_options | ({"decoder": None} if "decoder" in p.all_options else {})
    assert count_parameters(build_model(p.model, image_shape=shape, num_classes=classes, **options)) == p.parameters


def test_every_protocol_and_paper_is_that_of_a_value():
    assert set(read_file().protocols) == {p.protocol for p in read_published()}
    assert {p.paper for p in [*read_published(), *rows_without_models()]} == set(read_file().papers)


# (id, first error, second error, difference) as typed from the papers
CLAIMS = {
    "S17-iterations-mnist": (0.25, 0.29, -0.04),
    "S17-decoder-3": (0.25, 0.35, -0.10),
    "S17-affnist": (21, 34, -13),
    "H18-iterations": (1.8, 9.7, -7.9),
    "H18-pose": (1.8, 2.9, -1.1),
    "H18-coordinates": (1.8, 2.6, -0.8),
    "H18-azimuth": (13.5, 20, -32.5),
    "H18-elevation": (12.3, 17.8, -30.9),
    "H18-fgsm-0.1": (14, 43, -29),
    "H18-bim-0.5": (45, 95, -50),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_are_those_of_the_papers(name):
    (claim,) = [claim for claim in claims() if claim.id == name]
    assert (claim.first.value.error, claim.second.value.error, claim.difference) == CLAIMS[name]


def test_the_size_of_a_claim_is_that_of_its_values():
    for claim in claims():
        if claim.first.value is None or claim.first.value.attack != claim.attack:  # no value of what was claimed
            assert claim.difference is None and claim.expected == "same"
            continue
        first, second = claim.first.value.error, claim.second.value.error
        size = first - second if claim.unit == "points" else 100 * (first - second) / second
        assert claim.difference == pytest.approx(size, abs=0.051), claim.id
        assert (claim.expected == "lower") == (size < 0), claim.id
        assert claim.wording.endswith(".") and claim.place


def test_capsules_are_said_to_be_no_better_against_transferred_attacks():
    (claim,) = [claim for claim in claims() if claim.attack and claim.attack.name == "transfer"]
    assert (claim.first.model, claim.second.model) == ("matrix_capsnet", "cnn_hinton_norb")
    assert claim.expected == "same"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('printed: "0.25"', "printd: 1", ["S17-mnist-3-decoder", "printd"]),
        ('printed: "0.25"', "printed: 0.25", ["S17-mnist-3-decoder", "printed", "string"]),
        ("std: 0.005, n: 3", "std: 0.005", ["S17-mnist-3-decoder", "n, the number of trials"]),
        ("id: S17-mnist-3-decoder", "id: S17-mnist-3", ["S17-mnist-3", "twice"]),
        ("steps_at_least: 350000", "step_at_least: 350000", ["protocols.H18-smallnorb", "step_at_least"]),
        ("protocol: R19-svhn", "protocol: R19-shvn", ["R19-svhn", "no protocol 'R19-shvn'"]),
        ("first: H18-smallnorb-3", "first: H18-smallnorb-4", ["H18-iterations", "no value 'H18-smallnorb-4'"]),
        ("paper: B20", "paper: B21", ["B20-mnist", "no paper 'B21'"]),
    ],
)
def test_a_slip_in_the_file_is_an_error_that_names_the_entry(tmp_path, old, new, words):
    text = PATH.read_text()
    assert old in text
    path = tmp_path / "published.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_file(path)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("learning_rate: 0.01", "learning_rat: 0.01", ["protocols.H18-smallnorb", "learning_rat"]),
        ("data_set: svhn", "data_set: shvn", ["protocols.S17-svhn", "shvn"]),
        ("task: {view: azimuth}", "task: {view: azimut}", ["protocols.H18-azimuth", "view"]),
        ("match: cnn_matched", "match: cnn_match", ["protocols.S17-affnist", "cnn_match"]),
        ("pose: vector", "pos: vector", ["values.H18-smallnorb-vector", "pos"]),
    ],
)
def test_what_no_network_or_data_set_has_is_a_problem_of_an_entry(tmp_path, old, new, words):
    text = PATH.read_text()
    assert old in text
    path = tmp_path / "published.yaml"
    path.write_text(text.replace(old, new, 1))
    found = list(problems(read_file(path)))
    assert any(all(word in problem for word in words) for problem in found), found


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
        ("{name: affnist, options: {train: affine}}", "capsnet", "S17 section 5.2", None),
        ("{name: smallnorb}", "matrix_capsnet", "H18 Figure 3", None),
    ],
)
def test_a_value_is_of_one_task(run_on, data, model, tables, error):
    found = counterpart(run_on(data, f"{{model: {model}}}"), (tables,))
    assert (found.error if found else None) == error


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("{model: matrix_capsnet}", "H18-smallnorb-3"),
        ("{model: matrix_capsnet, options: {conv_channels: 64}}", "H18-smallnorb-3"),
        (
            "{model: matrix_capsnet, options: {conv_channels: 64, primary_types: 8, conv_types: [16, 16]}}",
            "H18-smallnorb-small",
        ),
    ],
)
def test_the_row_that_says_more_of_a_method_is_its_own(run_on, variant, name):
    assert counterpart(run_on("{name: smallnorb}", variant), ("H18 Table 1", "H18 section 5")).id == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{}", None),
        ("{shift: 6}", ["shift of the authors", "easier"]),
        ("{shift: 6, base_shift: digit}", ["keep their places"]),
    ],
)
def test_what_is_compared_as_well_is_said_of_the_value(run_on, options, words):
    run = run_on(f"{{name: multimnist, options: {options}}}", "{model: capsnet}")
    caveat = counterpart(run, TABLES).caveat
    assert "pair-exact" in caveat
    if words is None:
        assert "keep their places" not in caveat and "easier" not in caveat
    else:
        assert all(word in caveat for word in words)
