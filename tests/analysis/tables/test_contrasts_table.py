"""The files of the table of contrasts: numbers, what was shown and on what, and a study that has not run."""

import re
from csv import DictReader

import pandas as pd
import pytest
from studies import FIVE

from capsbench.analysis.collect import collect
from capsbench.analysis.contrasts import compare
from capsbench.analysis.tables import write_table, write_tables
from capsbench.analysis.tables.contrasts import contrasts_table


@pytest.fixture
def written(make_plan, write_run, results):
    """The files of a table of two experiments: on stand-ins, and on files that are not official."""
    plan = make_plan(
        FIVE.replace("variants:", "  copy: {data: {name: mnist}}\nvariants:")
        + "contrasts: {iterations_2: [{a: capsnet-iterations2, b: capsnet-iterations1}]}\n"
    )
    for run in plan.runs:
        error = 2.0 + run.seed / 10 + (0.1 + run.seed / 100) * (run.variant == "capsnet-iterations2")
        lines = ("train-images: md5 12, the official file's is 34",) if run.data.name == "mnist" else ()
        if run.key != "digits/capsnet-iterations2/seed4":
            write_run(run, error=error, unofficial=lines)
        else:
            write_run(run, "diverged")
    return write_table(contrasts_table(plan, collect(plan, results)), results / "tables")


def test_the_csv_holds_the_numbers(written):
    csv = written[0]
    assert csv.name == "contrasts.csv"
    rows = list(DictReader(csv.read_text(encoding="utf-8").splitlines()))
    assert [(row["experiment"], row["n"], row["planned"]) for row in rows] == [("digits", "4", "5"), ("copy", "5", "5")]
    assert float(rows[0]["mean"]) == pytest.approx(0.115)
    assert float(rows[1]["mean"]) == pytest.approx(0.12)
    assert rows[1]["differences"].startswith("0: 0.1; 1: 0.11; 2: 0.12")
    assert csv.read_text(encoding="utf-8").isascii()  # minus signs are hyphens there
    p = [float(row["p"]) for row in rows]
    assert min(float(row["p_holm"]) for row in rows) == pytest.approx(2 * min(p))


def test_markdown_says_what_was_shown_and_on_what(written):
    text = written[1].read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert "CapsNet: iterations 2 against 1" in rows[2]
    assert "higher by 0.094 to 0.136 points (four seeds, paired; dropped: " in rows[2]
    assert "4 of 5" in rows[2]
    assert "points (five seeds, paired)" in rows[3]
    below = text.split("\n\n", 1)[1]
    for fact in (
        "Study 'five'", "equal seeds", "the probability", "paired t test", "Holm",
        "handwritten digits of scikit-learn in the place of mnist",
        "MNIST: not the official files (runs.csv has their checksums): train-images.",
        "iterations 2 diverged in 1 seed",
    ):  # fmt: skip
        assert fact in below
    assert "MNIST in the place" not in below


def test_a_contrast_declared_when_its_errors_were_known_is_called_post_hoc(make_plan, write_run, results):
    pairs = [
        f"{{a: capsnet-iterations{n}, b: capsnet-iterations1, post_hoc: {flag}}}"
        for n, flag in ((2, "true"), (3, "false"))
    ]
    plan = make_plan(FIVE + f"contrasts: {{f: [{', '.join(pairs)}]}}\n")
    for run in plan.runs:
        write_run(run, error=1.0 + run.seed)
    csv, md, _ = write_table(contrasts_table(plan, collect(plan, results)), results / "tables")
    assert list(pd.read_csv(csv)["post_hoc"]) == [True, False]
    text = re.sub(" +", " ", md.read_text())
    assert "iterations 2 against 1 (post hoc) |" in text and "iterations 3 against 1 |" in text
    assert "Post hoc: the contrast was declared when" in text


def test_latex_has_eight_columns_and_is_escaped(written):
    text = written[2].read_text(encoding="utf-8")
    body = text.split("\n", 1)[1]  # the first line is a comment
    assert body.count("%") == body.count(r"\%")
    assert body.count("_") == body.count(r"\_")
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows if "multicolumn" not in line} == {7}
    assert r"\multicolumn{8}{@{}l}{\emph{iterations 2}}" in body
    name = "handwritten digits of scikit-learn: CapsNet: iterations 2 against 1"
    assert f"{name} & 2.27~$-$~2.15 & +0.115 [+0.094,~+0.136] & higher & " in body
    assert {"±", "†", "<"}.isdisjoint(body.replace("$<$", "").replace(">{", ""))
    for rule in (r"\toprule", r"\bottomrule", r"\label{tab:contrasts}", r"\begin{table*}", r"\end{table*}"):
        assert body.count(rule) == 1


def test_contrasts_are_among_the_tables_of_a_study(five, make_plan, results):
    assert [path.name for path in write_tables(five, collect(five, results), results / "tables")["contrasts"]] == [
        f"contrasts.{ending}" for ending in ("csv", "md", "tex")
    ]
    without = make_plan(FIVE + "contrasts: {}\n")
    assert "contrasts" not in write_tables(without, collect(without, results), results / "tables")


def test_an_experiment_of_which_no_run_was_made_is_named_and_has_no_rows(make_plan, write_run, results):
    plan = make_plan(FIVE.replace("variants:", "  pairs: {data: {name: multidigits}}\nvariants:"))
    for run in plan.runs:
        if run.experiment == "digits":
            write_run(run, error=1.0 + run.seed)
    csv, md, _ = write_table(contrasts_table(plan, collect(plan, results)), results / "tables")
    assert set(pd.read_csv(csv)["experiment"]) == {"digits"}
    assert "No run was made yet of overlaid pairs of scikit-learn's digits." in md.read_text()


def test_a_study_that_has_not_run_shows_nothing(five, results):
    table = compare(five.contrasts, collect(five, results))
    assert list(table["n"]) == [0, 0]
    assert set(table["shows"]) == {"no seed to compare; dropped: both are missing in 5 seeds"}
    paths = write_table(contrasts_table(five, collect(five, results)), results / "tables")
    assert "0 of 5" in paths[1].read_text()
