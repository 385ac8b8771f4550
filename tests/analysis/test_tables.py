import math
import re
from csv import reader
from typing import get_args

import pandas as pd
import pytest
from studies import FULL

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import TABLES, caption, for_people, notes, paper_table, write_table
from capsbench.config import Table

CAVEAT = "Of the published values: 0.25 ± 0.005: what public code reaches is 0.25 to 0.40."
EVERY_DATA_SET = """\
name: all
seeds: [0]
experiments:
  digits: {data: {name: digits}}
  pairs: {data: {name: multidigits}}
  cifar10: {data: {name: cifar10}}
  affine: {data: {name: affdigits}}
  placed: {data: {name: mnist-translated}}
  generated: {data: {name: affnist-generated}}
  official: {data: {name: affnist}}
  full: {data: {name: toynorb}}
  azimuth: {data: {name: toynorb, options: {view: azimuth}}}
  elevation: {data: {name: smallnorb, options: {view: elevation}}}
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
        return paper_table("sabour-table1", plan, collect(plan, results))

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
        "2 epochs, not 50 or more; conv_channels 8, not 256; detach True, not False; batch_size 8, not 128; "
        "learning_rate 0.01, not 0.001"
    )
    table = table_of(plan, [1.0] * 3)
    assert table.loc[0, "verdict"] == f"not comparable: {why}"
    twice = pd.concat([table, table])
    assert list(for_people(twice)["verdict"]) == ["not comparable (a)"] * 2
    assert notes(twice) == [f"(a) {why}.", CAVEAT]


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
    assert for_people(paper_table("sabour-table1", plan, collect(plan, results)))["time a run"][0] == text


@pytest.fixture
def written(plan, table_of, results):
    """The three files of one table: csv, md, tex."""
    table = table_of(plan, [1.0, 1.5, "diverged", *["failed"] * 3, *["missing"] * 3])
    paths = write_table(table, "sabour-table1", results / "tables", caption("sabour-table1", plan))
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
    assert below[1:] == ["(a) digits is not mnist; 2 epochs, not 50 or more.", CAVEAT]


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


def test_a_study_that_names_no_table_gets_those_of_its_data_sets(make_plan):
    assert make_plan(EVERY_DATA_SET).tables == list(TABLES)
    for data, expected in [
        ("{name: digits}", ["sabour-table1"]),
        ("{name: multimnist}", ["sabour-table1"]),
        ("{name: mnist-translated}", ["affnist"]),
        ("{name: affnist-generated}", ["affnist"]),
        ("{name: toynorb}", ["hinton-table1"]),
        ("{name: smallnorb, options: {view: elevation}}", ["hinton-table2"]),
    ]:
        assert make_plan(FULL.replace("{name: mnist}", data)).tables == expected


def test_tables_that_a_study_names_are_made_as_listed(make_plan, results):
    plan = make_plan(FULL + "tables: [hinton-table2, sabour-table1]\n")
    assert plan.tables == ["hinton-table2", "sabour-table1"]
    empty = paper_table("hinton-table2", plan, collect(plan, results))
    assert empty.empty
    for path in write_table(empty, "hinton-table2", results / "tables", caption("hinton-table2", plan)):
        assert path.read_text()
    assert make_plan(FULL + "tables: []\n").tables == []


def test_each_run_stands_in_one_table(make_plan, results):
    plan = make_plan(EVERY_DATA_SET)
    rows = {name: list(paper_table(name, plan, collect(plan, results))["experiment"]) for name in TABLES}
    assert rows == {
        "sabour-table1": ["digits", "pairs", "cifar10"],
        "affnist": ["affine", "placed", "generated", "official"],
        "hinton-table1": ["full"],
        "hinton-table2": ["azimuth", "elevation"],
    }


def test_a_caption_names_the_table_of_the_paper(plan):
    said = {name: re.search(r"Published: (.*?)\. Nothing", caption(name, plan))[1] for name in TABLES}
    assert said["sabour-table1"] == (
        "Sabour, Frosst, Hinton 2017 (S17), Table 1; of later networks their own papers (published.yaml)"
    )
    assert said["affnist"].endswith("(S17), section 5.2")
    assert said["hinton-table1"].startswith("Hinton, Sabour, Frosst 2018 (H18), Table 1")
    assert said["hinton-table2"].endswith("(H18), Table 2")


def test_notes_go_on_after_z(make_plan, write_run, results):
    sizes = range(1, 29)
    plan = make_plan(FULL.replace("{model: capsnet}", f"{{model: capsnet, grid: {{conv_channels: {list(sizes)}}}}}"))
    for run in plan.runs:
        write_run(run)
    table = paper_table("sabour-table1", plan, collect(plan, results))
    marks = [re.search(r"\((\w+)\)", verdict)[1] for verdict in for_people(table)["verdict"]]
    assert marks[:2] + marks[24:] == ["a", "b", "y", "z", "aa", "ab"]
    assert len(set(marks)) == 28
    assert notes(table)[26] == "(aa) conv_channels 27, not 256."


def test_caveats_of_the_published_values_stand_below_once(make_plan, table_of):
    plan = make_plan(FULL + "  detached: {model: capsnet, options: {detach: true}}\n  cnn: {model: cnn_sabour_mnist}\n")
    *_, last = notes(table_of(plan, ["missing"] * 9))
    assert last == CAVEAT.removesuffix(".") + ". 0.39: no std given; the dropout rate is not in the paper."


def test_generated_images_are_never_called_affnist(make_plan, write_run, results):
    plan = make_plan(EVERY_DATA_SET)
    for run in plan.runs:
        write_run(run)
    table = paper_table("affnist", plan, collect(plan, results))
    assert list(for_people(table)["data"]) == ["affdigits", "mnist-translated", "affnist-generated", "affnist"]
    text = for_people(table[table["data"] == "affnist-generated"])
    assert not any(re.search(r"\baffnist\b(?!-generated)", str(cell), re.IGNORECASE) for cell in text.iloc[0])
    assert table.loc[2, "verdict"].startswith("not comparable: affnist-generated is not affnist; ")
    assert table["difference"].isna()[:3].all()


def test_other_routings_stand_by_their_names_and_beside_no_published_value(make_plan, results):
    more = "  em: {model: capsnet, options: {routing: em}}\n  uniform: {model: capsnet, options: {routing: uniform}}\n"
    plan = make_plan(FULL + more)
    table = paper_table("sabour-table1", plan, collect(plan, results))
    assert list(table["routing"]) == ["3", "em 3", "uniform"]
    assert list(table["verdict"]) == ["not run", "no published value", "no published value"]


def test_a_table_without_pairs_has_one_error(plan, table_of):
    text = for_people(table_of(plan, [1.0] * 9))
    assert [column for column in text if "digit" in column or "pair" in column] == []
    assert "ours (error %)" in text
