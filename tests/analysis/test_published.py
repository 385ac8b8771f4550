import pytest

from capsbench.analysis.published import counterpart, deviations, read_published

TABLES = ("S17 Table 1",)
# typed from Table 1 of Sabour, Frosst, Hinton 2017: (model, routing, reconstruction) -> MNIST error, std; MultiMNIST
MNIST = {
    ("cnn_sabour_mnist", None, None): (0.39, None),
    ("capsnet", 1, False): (0.34, 0.032),
    ("capsnet", 1, True): (0.29, 0.011),
    ("capsnet", 3, False): (0.35, 0.036),
    ("capsnet", 3, True): (0.25, 0.005),
}
MULTIMNIST = {
    ("cnn_sabour_multimnist", None, None): (8.1, None),
    ("capsnet", 1, True): (7.5, None),
    ("capsnet", 3, True): (5.2, None),
}
STUDY = """\
name: full
seeds: [0]
training: {}
experiments:
  mnist: {data: {name: mnist}}
variants:
  capsnet: {model: capsnet, grid: {iterations: [1, 3], reconstruction: [false, true]}}
  cnn: {model: cnn_sabour_mnist}
"""


@pytest.fixture
def runs_of(make_plan):
    """The runs of the full study with some text replaced."""

    def load(*changes: tuple[str, str]):
        text = STUDY
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return make_plan(text).runs

    return load


@pytest.mark.parametrize(("data_set", "expected"), [("mnist", MNIST), ("multimnist", MULTIMNIST)])
def test_values_are_those_of_the_paper(data_set, expected):
    found = {
        (p.model, p.options.get("iterations"), p.options.get("reconstruction")): (p.error, p.std)
        for p in read_published()
        if (p.paper, p.table) == ("S17", "Table 1") and p.requirements["data_set"] == data_set
    }
    assert found == expected


def test_values_with_a_std_are_of_three_trials():
    assert {p.n for p in read_published() if p.std is not None} == {3}


@pytest.mark.parametrize(
    ("index", "text"), [(0, "0.34 ± 0.032"), (1, "0.29 ± 0.011"), (2, "0.35 ± 0.036"), (3, "0.25 ± 0.005"), (4, "0.39")]
)
def test_a_run_stands_beside_the_value_of_its_method(runs_of, index, text):
    assert str(counterpart(runs_of()[index], TABLES)) == text


@pytest.mark.parametrize("data", ["{name: digits}", "{name: mnist, train_images: 5000}"])
def test_a_method_keeps_its_row_on_other_data(runs_of, data):
    runs = runs_of(("{name: mnist}", data))
    assert [str(counterpart(run, TABLES)) for run in runs[3:]] == ["0.25 ± 0.005", "0.39"]


@pytest.mark.parametrize(
    ("old", "new"), [("iterations: [1, 3]", "iterations: [2]"), ("model: cnn_sabour_mnist", "model: cnn_matched")]
)
def test_a_method_that_is_not_in_the_paper_has_no_counterpart(runs_of, old, new):
    changed = [run for run in runs_of((old, new)) if run not in runs_of()]
    assert changed
    assert {counterpart(run, TABLES) for run in changed} == {None}


def test_no_value_is_found_for_another_table(runs_of):
    assert counterpart(runs_of()[3], ("S17 Table 2",)) is None


def reasons(run) -> list[str]:
    published = counterpart(run, TABLES)
    assert published is not None
    return deviations(run, published)


@pytest.mark.parametrize(
    "change",
    [
        ("training: {}", "training: {epochs: 50}"),
        ("training: {}", "training: {epochs: 200, device: cpu, threads: 4, deterministic: true}"),
        ("{name: mnist}", "{name: mnist, validation_images: 5000}"),
        ("{name: mnist}", "{name: mnist, train_images: 55000}"),
    ],
)
def test_a_full_study_deviates_in_nothing(runs_of, change):
    assert [reasons(run) for run in runs_of(change)] == [[]] * 5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{name: mnist}", "{name: digits}", ["digits is not mnist"]),
        ("{name: mnist}", "{name: mnist, train_images: 5000}", ["5,000 of 60,000 training images"]),
        ("{name: mnist}", "{name: mnist, validation_images: 5001}", ["54,999 of 60,000 training images"]),
        ("training: {}", "training: {epochs: 49}", ["49 epochs, not 50 or more"]),
        ("training: {}", "training: {batch_size: 64}", ["batch_size 64, not 128"]),
        ("training: {}", "training: {augmentation: {shift: 0}}", ["augmentation none, not shift 2"]),
        ("reconstruction: [false, true]", "detach: [true]", ["detach True, not False"]),
        ("reconstruction: [false, true]", "conv_channels: [64]", ["conv_channels 64, not 256"]),
        ("reconstruction: [false, true]", "decoder_hidden: [[8, 9]]", ["decoder_hidden 8-9, not 512-1024"]),
    ],
)
def test_a_deviation_is_named_with_the_paper_value(runs_of, old, new, said):
    assert reasons(runs_of((old, new))[0]) == said


def test_a_study_that_is_cut_down_names_everything(runs_of):
    run = runs_of(
        ("{name: mnist}", "{name: mnist, train_images: 5000}"),
        ("training: {}", "training: {epochs: 30}"),
        ("capsnet: {model", "capsnet: {options: {primary_types: 8}, model"),
    )[3]
    assert reasons(run) == ["5,000 of 60,000 training images", "30 epochs, not 50 or more", "primary_types 8, not 32"]
