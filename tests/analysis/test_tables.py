import math
from csv import reader
from typing import get_args

import pandas as pd
import pytest

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import TABLES, caption, for_people, notes, sabour_table1, write_table
from capsbench.config import Table

FULL = """\
name: full
seeds: [0, 1, 2]
experiments:
  mnist: {data: {name: mnist}}
variants:
  capsnet: {model: capsnet}
"""


@pytest.fixture
def table_of(results, write_run):
    """The table of a study whose runs ended as said: a status, or an error for a run that is ok."""

    def make(plan, ends: list[str | float]) -> pd.DataFrame:
        for run, end in zip(plan.runs, ends, strict=True):
            if isinstance(end, float):
                write_run(run, error=end)
            elif end != "missing":
                write_run(run, end)
        return sabour_table1(plan, collect(plan, results))

    return make


def test_a_row_for_each_variant_in_the_order_of_the_study(plan, table_of):
    table = table_of(plan, ["missing"] * 9)
    assert list(table["variant"]) == ["capsnet-iterations1", "capsnet-iterations3", "cnn_matched"]
    assert list(table["method"]) == ["CapsNet", "CapsNet", "CNN (matched size)"]
    assert list(table["routing"]) == ["1", "3", "-"]
    assert list(table["reconstruction"]) == ["yes", "yes", "-"]


def test_numbers_stay_numbers(plan, table_of):
    row = table_of(plan, [1.0, 2.0, 3.0] + ["missing"] * 6).iloc[0]
    assert (row["mean"], row["std"], row["n"], row["planned"]) == (2.0, 1.0, 3, 3)
    assert (row["low"], row["high"]) == pytest.approx((-0.484138, 4.484138), abs=1e-6)
    assert (row["parameters"], row["seconds"]) == (1234567, 90.0)


@pytest.mark.parametrize(
    ("ends", "ours", "n"),
    [
        ([1.0, 1.5, 2.0], "1.50 ± 0.50", "3 of 3"),
        ([1.0, 1.5, "diverged"], "1.25 ± 0.35", "2 of 3, 1 diverged"),
        ([1.0, "diverged", "failed"], "1.00", "1 of 3, 1 diverged, 1 failed"),
        ([1.0, "running", "missing"], "1.00", "1 of 3"),
        (["failed", "failed", "failed"], "failed", "0 of 3, 3 failed"),
        (["diverged", "diverged", "diverged"], "diverged", "0 of 3, 3 diverged"),
        (["diverged", "failed", "missing"], "failed", "0 of 3, 1 diverged, 1 failed"),
        (["running", "missing", "missing"], "-", "0 of 3"),
        (["missing", "missing", "missing"], "-", "0 of 3"),
    ],
)
def test_text_of_a_cell_says_what_became_of_its_runs(plan, table_of, ends, ours, n):
    row = for_people(table_of(plan, ends + ["missing"] * 6)).iloc[0]
    assert (row["ours (error %)"], row["n"]) == (ours, n)
    numbers = sum(isinstance(end, float) for end in ends)
    assert (row["95 % interval"] == "-") == (numbers < 2)
    assert (row["time a run"], row["parameters"]) == (("1 min 30 s", "1,234,567") if numbers else ("-", "-"))


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ([1.0, 1.0, 1.0], "not comparable: digits is not mnist; 2 epochs, not 50 or more"),
        (["missing"] * 3, "not run"),
        ([*["failed"] * 2, "diverged"], "no run ended well"),
        (["running", "failed", "failed"], "no run ended well"),
    ],
)
def test_a_cell_without_comparison_says_why(plan, table_of, ends, verdict):
    table = table_of(plan, ends + [1.0] * 6)
    assert table.loc[0, "verdict"] == verdict
    assert math.isnan(table.loc[0, "difference"])
    assert table.loc[2, "verdict"] == "no published value"


@pytest.mark.parametrize(
    ("errors", "verdict", "difference"),
    [
        ([0.24, 0.25, 0.26], "reproduced", "+0.00"),
        ([0.34, 0.35, 0.36], "missed: higher by 0.10", "+0.10"),
        ([0.14, 0.15, 0.16], "missed: lower by 0.10", "-0.10"),
    ],
)
def test_a_full_study_is_held_against_the_paper(make_plan, table_of, errors, verdict, difference):
    row = for_people(table_of(make_plan(FULL), errors)).iloc[0]
    assert row[["data", "published", "verdict", "difference"]].to_list() == [
        "mnist", "0.25 ± 0.005", verdict, difference,
    ]  # fmt: skip


def test_why_rows_are_not_comparable_stands_below_the_table_once(make_plan, table_of):
    cut = FULL.replace("{model: capsnet}", "{model: capsnet, options: {detach: true, conv_channels: 8}}")
    plan = make_plan(cut + "training: {epochs: 2, batch_size: 8, learning_rate: 0.01}\n")
    why = (
        "2 epochs, not 50 or more; detach True, not False; conv_channels 8, not 256; batch_size 8, not 128; "
        "learning_rate 0.01, not 0.001"
    )
    table = table_of(plan, [1.0] * 3)
    assert table.loc[0, "verdict"] == f"not comparable: {why}"
    twice = pd.concat([table, table])
    assert list(for_people(twice)["verdict"]) == ["not comparable (a)"] * 2
    assert notes(twice) == [f"(a) {why}."]


def test_variants_are_named_where_nothing_else_tells_rows_apart(make_plan, plan, table_of):
    assert "variant" not in for_people(table_of(plan, ["missing"] * 9))
    alike = make_plan(FULL + "  detached: {model: capsnet, options: {detach: true}}\n")
    assert list(for_people(table_of(alike, ["missing"] * 6))["variant"]) == ["capsnet", "detached"]


def test_experiments_on_one_data_set_are_told_apart(make_plan, table_of):
    plan = make_plan(FULL.replace("experiments:", "experiments:\n  cut: {data: {name: mnist, train_images: 100}}"))
    text = for_people(table_of(plan, ["missing"] * 6))
    assert not text[["data", "experiment", "method", "routing", "reconstruction"]].duplicated().any()
    assert text.astype(str).agg(" ".join, axis=1).str.contains("cut").any()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (7260, "2 h 1 min")]
)
def test_time_a_run(plan, write_run, results, seconds, text):
    write_run(plan.runs[0], seconds=seconds)
    assert for_people(sabour_table1(plan, collect(plan, results)))["time a run"][0] == text


@pytest.fixture
def written(plan, table_of, results):
    """The three files of one table: csv, md, tex."""
    table = table_of(plan, [1.0, 1.5, "diverged", *["failed"] * 3, *["missing"] * 3])
    paths = write_table(table, "sabour-table1", results / "tables", caption(plan))
    assert [path.name for path in paths] == [f"sabour-table1.{ending}" for ending in ("csv", "md", "tex")]
    return table, *paths


def test_csv_holds_numbers_in_full(written):
    table, path, *_ = written
    heading, *rows = list(reader(path.read_text(encoding="utf-8").splitlines()))
    read = [dict(zip(heading, row, strict=True)) for row in rows]
    assert heading == list(table.columns)
    assert [row["mean"] for row in read] == ["1.25", "", ""]
    assert float(read[0]["std"]) == table.loc[0, "std"]
    assert [row["failed"] for row in read] == ["0", "3", "0"]


def test_markdown_holds_every_row_and_says_how_to_read_it(written):
    _, _, markdown, _ = written
    lines = markdown.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    ours = rows[0].index("ours (error %)")
    assert [row[ours] for row in rows[2:]] == ["1.25 ± 0.35", "failed", "-"]
    below = [line for line in lines if line and not line.startswith("|")]
    assert below[0].startswith("Study 'small_study'. Test error in %")
    assert below[1:] == ["(a) digits is not mnist; 2 epochs, not 50 or more."]


def test_latex_is_escaped_and_ruled(written):
    latex = written[3].read_text(encoding="utf-8")
    body = latex.split("\n", 1)[1]  # the first line is a comment
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\label{tab:sabour-table1}"):
        assert body.count(rule) == 1
    assert r"Study 'small\_study'. Test error in \%" in body
    assert r"ours (error \%)" in body
    assert r"1.25 $\pm$ 0.35" in body
    assert "±" not in body
    assert body.count("%") == body.count(r"\%")
    assert body.count("_") == body.count(r"\_")


def test_every_table_that_a_study_may_name_exists():
    assert set(get_args(Table)) == set(TABLES)
