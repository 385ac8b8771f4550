from pathlib import Path

import pandas as pd
import pytest

from capsbench.benchmarks.costs import cost, cost_lines, images_per_epoch, images_shown
from capsbench.benchmarks.networks import COLUMNS, network_digest
from capsbench.study import load_plan

STUDY = """\
name: small
seeds: [0, 1]
training: {epochs: 3, batch_size: 100}
experiments:
  digits: {data: {name: mnist, train_images: 1050}}
  views: {data: {name: toynorb}}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
  cnn: {model: resnet20}
"""
SOURCE = Path("speeds.csv")


@pytest.fixture
def make_plan(tmp_path):
    def make(*changes: tuple[str, str]):
        text = STUDY
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "study.yaml").write_text(text)
        return load_plan(tmp_path / "study.yaml")

    return make


def speeds_of(*known) -> pd.DataFrame:
    """(machine, threads, run, images per second), ... -> as `read_speeds` returns them."""
    rows = [
        dict.fromkeys(COLUMNS, "") | {"machine": m, "threads": t, "network": network_digest(r), "images_per_second": s}
        for m, t, r, s in known
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"threads": "Int64"})


@pytest.mark.parametrize(
    ("data", "images"),
    [
        ("{name: mnist}", 60_000),
        ("{name: mnist, validation_images: 5000}", 55_000),
        ("{name: mnist, train_images: 300, validation_images: 5000}", 300),
        ("{name: multimnist, options: {train_pairs: 777}}", 777),
        ("{name: smallnorb, options: {view: azimuth}}", 8100),
    ],
)
def test_an_epoch_has_the_images_that_are_left_after_all_cuts(make_plan, data, images):
    plan = make_plan(("{name: mnist, train_images: 1050}", data))
    assert images_per_epoch(plan.data["digits"]) == images


@pytest.mark.parametrize(
    ("length", "images"),
    [("epochs: 3", 3150), ("steps: 10", 1000), ("steps: 11", 1050), ("steps: 12", 1150), ("steps: 33", 3150)],
)
def test_images_of_a_run_count_the_short_batch_that_ends_an_epoch(make_plan, length, images):
    assert images_shown(make_plan(("epochs: 3", length)).runs[0]) == images


def test_hours_are_images_over_the_speed_of_the_network_on_each_machine(make_plan):
    plan = make_plan()
    first, second = plan.cell("digits", "capsnet-iterations1", 0), plan.cell("digits", "cnn", 0)
    frame = cost(
        plan, speeds_of(("GPU", None, first, 3150 / 3600), ("CPU", 1, first, 1.75 / 3600), ("CPU", 1, second, 1))
    )
    assert list(frame.columns) == ["table", "experiment", "variant", "images", "GPU", "CPU, 1 thread per run"]
    assert frame.loc[0].to_list() == ["sabour-table1", "digits", "capsnet-iterations1", 3150, 1.0, 1800.0]
    assert frame["GPU"].notna().sum() == 2  # the two seeds; toynorb has images of another shape
    assert frame["CPU, 1 thread per run"].notna().sum() == 4


def test_speeds_with_other_threads_or_of_other_networks_count_nothing(make_plan):
    plan, other = make_plan(), make_plan(("resnet20", "resnet20, options: {blocks: 2}"))
    run = other.cell("digits", "cnn", 0)
    assert list(cost(plan, speeds_of(("CPU", 1, run, 1.0))).columns) == ["table", "experiment", "variant", "images"]
    assert "CPU, 2 threads per run" not in cost(plan, speeds_of(("CPU", 2, plan.runs[0], 1.0)))


def test_the_text_sums_by_table_and_names_what_it_leaves_out(make_plan):
    plan = make_plan()
    known = [("GPU", None, run, 3150 / 3600) for run in plan.runs if run.variant != "cnn" or run.experiment == "views"]
    lines = cost_lines(plan, speeds_of(*known), SOURCE)
    cells = [line.split() for line in lines[:4]]
    assert cells[0] == ["table", "runs", "images", "hours"]
    assert cells[1] == ["sabour-table1", "6", "18,900", ">", "4.0"]
    views = 6 * 3 * images_per_epoch(plan.data["views"])
    assert cells[2] == ["hinton-table1", "6", f"{views:,}", f"{views / 3150:.1f}"]
    assert cells[3] == ["all", "12", f"{18_900 + views:,}", ">", f"{4 + views / 3150:.1f}"]
    assert len({len(line) for line in lines[:4]}) == 1  # aligned
    assert "GPU" in lines[4]
    assert "speeds.csv" in lines[4]
    assert lines[5].endswith("not measured there: digits/cnn")
    assert len(lines) == 6


def test_several_machines_have_a_column_each(make_plan):
    plan = make_plan()
    run = plan.runs[0]
    lines = cost_lines(plan, speeds_of(("GPU", None, run, 1.0), ("CPU", 1, run, 1.0)), SOURCE)
    assert "hours (a)" in lines[0]
    assert "hours (b)" in lines[0]
    assert [line for line in lines if line.startswith("hours (a): GPU;")]
    assert [line for line in lines if line.startswith("hours (b): CPU, 1 thread per run;")]
    assert lines[2].split()[-2:] == ["-", "-"]  # hinton-table1
    assert lines[-1].endswith("digits/capsnet-iterations3, digits/cnn, all of hinton-table1")


def test_without_speeds_the_text_says_how_to_measure_them(make_plan):
    plan = make_plan()
    lines = cost_lines(plan, speeds_of(), SOURCE)
    assert lines[0].split() == ["table", "runs", "images"]
    assert "capsbench bench networks" in lines[-1]
    assert str(plan.path) in lines[-1]


def test_runs_that_may_stop_earlier_make_it_an_upper_limit(make_plan):
    early = make_plan(
        ("train_images: 1050", "train_images: 1050, validation_images: 100"),
        ("epochs: 3", "epochs: 3, early_stopping: 2"),
        ("{name: toynorb}", "{name: toynorb, validation_images: 100}"),
    )
    assert "upper limits" in cost_lines(early, speeds_of(), SOURCE)[-1]
    views = ("{name: toynorb}", "{name: toynorb, options: {view: azimuth}}, variants: [capsnet, cnn]")
    one = ("experiments:\n  digits: {data: {name: mnist, train_images: 1050}}", "experiments:")
    matched = make_plan(views, one, ("grid: {routing.iterations: [1, 3]}", "training: {match: cnn}"))
    assert "upper limits" in cost_lines(matched, speeds_of(), SOURCE)[-1]
    assert "upper limits" not in " ".join(cost_lines(make_plan(), speeds_of(), SOURCE))
