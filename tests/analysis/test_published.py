from pathlib import Path

import pytest
import yaml

from capsbench.analysis import published
from capsbench.analysis.published import counterpart, deviations, read_published
from capsbench.config import Training
from capsbench.data.catalogue import CATALOGUE
from capsbench.options import flat_options, model_names, model_options

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
    value = counterpart(run, TABLES)
    assert value is not None
    return deviations(run, value)


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


def of(paper, table):
    return [p for p in read_published() if (p.paper, p.table) == (paper, table)]


def test_values_of_matrix_capsules_are_those_of_the_paper():
    names = ("iterations", "pose", "loss", "coordinate_addition")
    found = {True: {}, False: {}}  # one crop at test?
    for p in of("H18", "Table 1"):
        one_crop = p.requirements["data_options"] == {"view": "full", "test_crops": 1}
        found[one_crop][tuple(p.options.get(name) for name in names) if p.options else p.model] = p.error
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{}", []),
        ("{opponent_options: {conv_channels: 32}}", ["opponent_options.conv_channels 32, not 256"]),
        ("{opponent_options: {reconstruction: false}}", None),
        ("{opponent_options: {routing: em}}", None),
        ("{opponent: resnet20}", None),
    ],
)
def test_the_cnn_on_affnist_has_the_size_of_the_papers_capsnet(run_on, options, said):
    training = "{epochs: 100, stop_at_familiar_accuracy: 0.9923}"
    run = run_on("{name: affnist}", f"{{model: cnn_matched, options: {options}}}", training)
    value = counterpart(run, ("S17 section 5.2",))
    assert (value and deviations(run, value)) == said


def test_every_published_value_can_be_run():
    for p in read_published():
        assert p.model in model_names()
        options = model_options(p.model)(**p.options).model_dump()  # refuses what the model does not have
        assert flat_options(p.options).items() <= flat_options(options).items()
        facts = CATALOGUE[p.requirements["data_set"]]
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


@pytest.fixture
def run_on(make_plan):
    """A run of one model on one data set, both as YAML, under a training protocol."""

    def load(data: str, variant: str, training: str = "{}"):
        text = (
            f"name: one\nseeds: [0]\ntraining: {training}\nexperiments: {{e: {{data: {data}}}}}\n"
            f"variants: {{v: {variant}}}\n"
        )
        (run,) = make_plan(text).runs
        return run

    return load


@pytest.mark.parametrize(
    ("data", "training", "said"),
    [
        ("{name: multimnist}", "{epochs: 1000}", []),
        ("{name: multimnist, options: {train_pairs: 600000}}", "{epochs: 100}", []),
        ("{name: multimnist, validation_images: 5000}", "{epochs: 1000}", []),
        ("{name: multimnist, options: {test_pairs: 500, pair_seed: 3}}", "{epochs: 1000}", []),
        (
            "{name: multimnist}",
            "{epochs: 999}",
            ["59,940,000 training images drawn, not 60,000,000 or more"],
        ),
        (
            "{name: multimnist, options: {train_pairs: 6000}}",
            "{epochs: 1000}",
            ["6,000,000 training images drawn, not 60,000,000 or more"],
        ),
        ("{name: multimnist, train_images: 5000}", "{epochs: 1000}", ["5,000 of 60,000 training images"]),
        ("{name: multimnist, options: {shift: 2}}", "{epochs: 1000}", ["shift 2, not 4"]),
        ("{name: multimnist, options: {combine: maximum}}", "{epochs: 1000}", ["combine maximum, not sum"]),
        ("{name: multimnist}", "{epochs: 1000, augmentation: {shift: 2}}", ["augmentation shift 2, not none"]),
        ("{name: multidigits}", "{epochs: 1000}", ["multidigits is not multimnist"]),
    ],
)
def test_of_pairs_the_images_drawn_are_counted(run_on, data, training, said):
    run = run_on(data, "{model: capsnet}", training)
    value = counterpart(run, ("S17 Table 1",))
    assert value.error == 5.2
    assert deviations(run, value) == said


HINTON = "batch_size: 64, learning_rate: 0.003, lr_decay_every: 20000"


@pytest.mark.parametrize(
    ("data", "training", "said"),
    [
        ("{name: smallnorb}", f"{{{HINTON}}}", []),
        ("{name: smallnorb}", "{}", ["batch_size 128, not 64", "learning_rate 0.001, not 0.003",
                                    "lr_decay_every 2000, not 20000"]),
        ("{name: smallnorb}", f"{{{HINTON}, lr_decay: 0.9}}", ["lr_decay 0.9, not 0.96"]),
        ("{name: smallnorb, options: {crop: 28}}", f"{{{HINTON}}}", ["crop 28, not 32"]),
        ("{name: smallnorb, train_images: 21999}", f"{{{HINTON}}}", ["21,999 of 24,300 training images"]),
        ("{name: smallnorb}", f"{{{HINTON}, epochs: 10}}", ["10 epochs, not 50 or more"]),
        ("{name: smallnorb}", f"{{{HINTON}, augmentation: {{contrast: 0.5}}}}",
         ["augmentation brightness 0.24705882352941178, contrast 0.5, "
          "not brightness 0.24705882352941178, contrast 0.8"]),
        ("{name: toynorb}", f"{{{HINTON}}}", ["toynorb is not smallnorb"]),
        ("{name: toynorb, options: {lightings: 1}}", f"{{{HINTON}}}",
         ["toynorb is not smallnorb", "lightings 1, not 6"]),
    ],
)  # fmt: skip
def test_what_is_compared_is_the_protocol_of_the_paper(run_on, data, training, said):
    run = run_on(data, "{model: matrix_capsnet}", training)
    value = counterpart(run, ("H18 Table 1", "S17 section 7"))
    assert value.error == 1.8
    assert deviations(run, value) == said


def test_a_protocol_belongs_to_the_paper_of_the_value(run_on):
    tables = ("H18 Table 1", "S17 section 7")
    capsnet, cnn = (run_on("{name: smallnorb}", f"{{model: {model}}}") for model in ("capsnet", "cnn_hinton_norb"))
    assert (counterpart(capsnet, tables).error, counterpart(cnn, tables).error) == (2.7, 5.2)
    assert deviations(capsnet, counterpart(capsnet, tables)) == []
    assert deviations(cnn, counterpart(cnn, tables))[0] == "batch_size 128, not 64"


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


def test_views_and_crops_that_are_not_the_papers_are_named(run_on):
    stop = f"{{{HINTON}, stop_at_familiar_accuracy: 0.963}}"
    run = run_on("{name: smallnorb, options: {view: azimuth}}", "{model: matrix_capsnet}", stop)
    assert deviations(run, counterpart(run, ("H18 Table 2",))) == []
    crops = run_on("{name: smallnorb, options: {test_crops: 13}}", "{model: capsnet}")
    assert deviations(crops, counterpart(crops, ("S17 section 7",))) == ["test_crops 13, not 1"]
    unstopped = run_on("{name: smallnorb, options: {view: azimuth}}", "{model: matrix_capsnet}", f"{{{HINTON}}}")
    assert deviations(unstopped, counterpart(unstopped, ("H18 Table 2",))) == [
        "stop_at_familiar_accuracy None, not 0.963"
    ]


@pytest.mark.parametrize(
    ("data", "training", "said"),
    [
        ("{name: affnist, options: {transform_seed: 7}}", "{stop_at_familiar_accuracy: 0.9923}", []),
        ("{name: affnist}", "{}", ["stop_at_familiar_accuracy None, not 0.9923"]),
        ("{name: affnist-generated, options: {transforms_per_image: 1}}", "{stop_at_familiar_accuracy: 0.9923}",
         ["affnist-generated is not affnist"]),
        ("{name: affnist, options: {train: affine}}", "{}",
         ["train affine, not translated", "stop_at_familiar_accuracy None, not 0.9923"]),
    ],
)  # fmt: skip
def test_what_keeps_a_run_from_the_papers_affnist(run_on, data, training, said):
    run = run_on(data, "{model: capsnet}", training)
    assert deviations(run, counterpart(run, ("S17 section 5.2",))) == said


def test_a_cut_of_the_training_set_is_named_on_every_data_set(make_plan):
    for data, words in [
        ("{name: affnist-generated, train_images: 5000}", "5,000 of 60,000 training images"),
        ("{name: affnist-generated}", ""),
        ("{name: affdigits, train_images: 500}", "500 of 1,258 training images"),
        ("{name: affdigits, validation_images: 200}", ""),
    ]:
        study = f"name: cut\nseeds: [0]\nexperiments: {{a: {{data: {data}}}}}\nvariants: {{v: {{model: capsnet}}}}\n"
        (run,) = make_plan(study).runs
        found = [reason for reason in deviations(run, counterpart(run, ("S17 section 5.2",))) if "images" in reason]
        assert found == ([words] if words else [])
