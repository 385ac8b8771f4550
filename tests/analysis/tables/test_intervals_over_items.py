"""The table of intervals over test items: known answers, and what it says where there is no interval."""

import math
import re
import shutil
import subprocess

import numpy as np
import pytest
from hand_made import all_but, leave_items
from studies import text_of

from capsbench.analysis.collect import collect
from capsbench.analysis.correct_bits import Correct, read_predictions
from capsbench.analysis.resampling import cluster_difference, cluster_interval
from capsbench.analysis.table_names import table_names
from capsbench.analysis.tables import build_table, write_table
from capsbench.run.folder import RunFolder
from capsbench.study import catalogue

STUDY = """\
name: items
seeds: [0, 1, 2]
training: {epochs: 1}
experiments:
  norb: {data: {name: smallnorb}}
  plain: {data: {name: digits}}
variants:
  first: {model: resnet20, label: the first}
  second: {model: cnn_matched, label: the second}
contrasts:
  both: [{a: first, b: second}]
"""
ITEMS = 1000
INSTANCES = np.arange(ITEMS) // (ITEMS // 5)  # with 5 categories, 25 objects of 40 items each
OBJECTS = 5 * INSTANCES + np.arange(ITEMS) % 5
NAME = "test_items"


@pytest.fixture
def plan(make_plan):
    return make_plan(STUDY)


@pytest.fixture
def leave(plan, results, write_run):
    """Write all runs with chosen items right, by (experiment, variant, seed), and the error that this gives."""

    def write(right_of, but=(), about=None, error=None):
        about = {"norb": {"factor_instance": INSTANCES}} if about is None else about
        for run in plan.runs:
            right = right_of(run.experiment, run.variant, run.seed)
            shown = 100 * (1 - np.mean(right)) if error is None else error
            folder = write_run(run, "diverged" if run.key in but else "ok", error=float(shown))
            leave_items(folder, right, **about.get(run.experiment, {}))
        return collect(plan, results)

    return write


@pytest.fixture
def made(plan, results, leave):
    def make(right_of, **changes):
        runs = leave(right_of, **changes)
        return build_table(NAME, plan, runs, read_predictions(plan, results))

    return make


def objects_wrong(experiment, variant, seed):
    """The first variant gets 5 whole objects of 25 wrong, the second 5 others and one of these; digits: 200 and 230."""
    if experiment == "norb":
        return ~np.isin(OBJECTS, range(5) if variant == "first" else range(4, 10))
    return all_but(200 if variant == "first" else 230, ITEMS, first=seed)


def rows_of(table, **values):
    found = table.numbers
    for name, value in values.items():
        found = found[found[name] == value]
    return found


def notes_of(table) -> str:
    return " ".join(table.notes)


def test_whole_objects_are_resampled_where_images_show_them(made):
    table = made(objects_wrong)
    (row,) = rows_of(table, experiment="norb", variant="first").to_dict("records")
    assert row["mean"] == pytest.approx(20)
    assert row["items_std_error"] == pytest.approx(100 * math.sqrt(0.2 * 0.8 / 25), rel=0.05)  # not of 1,000 images
    assert (row["resampled"], row["clusters"], row["items"]) == ("object", 25, ITEMS)
    assert row["items_low"] < 8 < 36 <= row["items_high"]
    shown = text_of(table, 0).set_index("variant").loc["the first"]
    assert shown["over test items"] == f"[{row['items_low']:.2f}, {row['items_high']:.2f}]"
    assert (shown["resampled"], shown["n"]) == ("25 objects", "3 of 3")


def test_images_are_resampled_where_they_are_independent(made):
    table = made(objects_wrong)
    (row,) = rows_of(table, experiment="plain", variant="first").to_dict("records")
    assert (row["resampled"], row["clusters"]) == ("image", ITEMS)
    right = [objects_wrong("plain", "first", seed) for seed in range(3)]
    expected = cluster_interval(right, None)
    assert (row["items_low"], row["items_high"]) == pytest.approx((expected.low, expected.high), abs=1e-5)
    assert row["items_std_error"] == pytest.approx(100 * math.sqrt(0.2 * 0.8 / ITEMS), rel=0.05)


def test_a_contrast_has_both_intervals_and_they_are_told_apart(made):
    def right_of(experiment, variant, seed):
        return all_but(200 + 10 * seed * (variant == "second"), ITEMS)  # the second: 200, 210, 220 of 1,000

    table = made(right_of)
    (row,) = rows_of(table, experiment="plain", label="the first against the second").to_dict("records")
    assert row["mean"] == pytest.approx(-1)
    assert (row["seeds_low"], row["seeds_high"]) == pytest.approx((-3.484, 1.484), abs=1e-3)  # t of 0, -1, -2
    first, second = ([right_of("plain", name, seed) for seed in range(3)] for name in ("first", "second"))
    expected = cluster_difference(first, second, None)
    assert (row["items_low"], row["items_high"]) == pytest.approx((expected.low, expected.high), abs=1e-5)
    assert row["items_high"] < 0 < row["seeds_high"]
    (shown,) = text_of(table, 2).query("contrast.str.startswith('handwritten digits')").to_dict("records")
    assert shown["over seeds"].startswith("[−3.48, ")
    assert shown["over test items"].endswith(f"{row['items_high']:.2f}]".replace("-", "−"))
    for words in ("other test items", "other trainings", "Neither interval"):
        assert words in table.caption


def test_mcnemar_counts_seeds_where_images_are_independent_and_is_refused_elsewhere(made):
    def right_of(experiment, variant, seed):
        # only one of two runs gets an item right: 5 (p = 0.06), 6 (p = 0.03), 40 items
        return all_but(0 if variant == "first" else (5, 6, 40)[seed], ITEMS)

    table = made(right_of)
    shown = text_of(table, 2).set_index("contrast")["McNemar"]
    assert shown.loc["handwritten digits of scikit-learn: the first against the second"] == "2 of 3"
    assert shown.loc["smallNORB: the first against the second"] == "-"
    assert re.search(r"refused.*smallNORB \(items of one object\)", notes_of(table))
    assert "0: 0.0625; 1: 0.0312" in rows_of(table, experiment="plain")["mcnemar_p"].iloc[-1]
    assert rows_of(table, experiment="norb")["mcnemar_p"].iloc[-1] == ""


def test_no_interval_is_given_where_it_is_not_known_which_object_an_image_shows(made):
    table = made(objects_wrong, about={})
    rows = rows_of(table, experiment="norb")
    assert len(rows) == 3
    assert rows[["items_low", "items_high", "items_std_error", "clusters"]].isna().all(axis=None)
    assert set(text_of(table, 0)["over test items"]) == {"- (a)"}
    assert re.search(r"\(a\) which object.*not kept", notes_of(table))
    assert rows_of(table, experiment="plain")["items_low"].notna().all()  # they are independent images


def test_digits_of_pairs_are_resampled(make_plan, results, write_run):
    plan = make_plan(STUDY.replace("name: digits", "name: affdigits").replace("norb: {data: {name: smallnorb}}", ""))
    digits = np.arange(ITEMS) // 10
    for run in plan.runs:
        leave_items(write_run(run, error=10.0), all_but(100, ITEMS), digits=digits)
    table = build_table(NAME, plan, collect(plan, results), read_predictions(plan, results))
    assert set(text_of(table, 0)["resampled"]) == {"100 digits"}
    expected = 100 * math.sqrt(0.1 * 0.9 / 100)
    assert table.numbers["items_std_error"].iloc[0] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("experiment", ["norb", "plain"])
def test_without_what_each_run_got_right_the_table_says_so(plan, leave, experiment):
    table = build_table(NAME, plan, leave(objects_wrong), None)
    rows = rows_of(table, experiment=experiment)
    assert rows["items_low"].isna().all() and rows["mean"].notna().all()
    assert "correct.npz" in notes_of(table)


def test_a_run_without_its_items_leaves_its_cell_and_contrast_without_an_interval(plan, results, leave):
    runs = leave(objects_wrong)
    found = read_predictions(plan, results)
    kept = {key: right for key, right in found.right.items() if key != "plain/second/seed1"}
    table = build_table(NAME, plan, runs, Correct(kept, found.clusters, found.fingerprints))
    rows = rows_of(table, experiment="plain")
    assert rows["items_low"].notna().tolist() == [True, False, False]
    assert "not kept for all runs" in notes_of(table)


def test_items_that_do_not_give_the_error_of_the_run_are_not_used(made):
    table = made(objects_wrong, error=19.9)
    assert table.numbers["items_low"].isna().all()
    assert "do not give the error" in notes_of(table)
    assert "19.90" in text_of(table)["error (%)"].iloc[0]


def test_runs_that_were_tested_on_different_items_are_not_put_together(plan, results, leave):
    runs = leave(objects_wrong)
    run = plan.run("norb/second/seed2")
    folder = RunFolder.of(results, run.study, run.key)
    about = {"factor_instance": INSTANCES, "fingerprint": np.array("e" * 64)}
    leave_items(folder, objects_wrong(run.experiment, run.variant, run.seed), **about)
    table = build_table(NAME, plan, runs, read_predictions(plan, results))
    assert rows_of(table, experiment="norb")["items_low"].isna().all()
    assert rows_of(table, experiment="plain")["items_low"].notna().all()
    assert "not all tested on the same items" in notes_of(table)


def test_few_objects_and_draws_that_are_all_alike_have_no_interval(made):
    def right_of(experiment, variant, seed):
        return objects_wrong(experiment, variant, seed) if experiment == "norb" else np.ones(ITEMS, bool)

    table = made(right_of, about={"norb": {"factor_instance": np.zeros(ITEMS, np.uint8)}})
    assert table.numbers["items_low"].isna().all()
    assert "fewer than 10 objects" in notes_of(table)
    assert "every draw gives the same" in notes_of(table)


def test_a_contrast_is_about_the_seeds_that_both_have(made, plan):
    table = made(objects_wrong, but=["plain/first/seed1"])
    (row,) = rows_of(table, experiment="plain", label="the first against the second").to_dict("records")
    sides = [[objects_wrong("plain", name, seed) for seed in (0, 2)] for name in ("first", "second")]
    expected = cluster_difference(*sides, None)
    assert (row["items_low"], row["items_high"]) == pytest.approx((expected.low, expected.high), abs=1e-5)
    name = "handwritten digits of scikit-learn: the first against the second"
    shown = text_of(table, 2).set_index("contrast").loc[name]
    assert (shown["n"], shown["McNemar"]) == ("2 of 3", "2 of 2")


def test_it_is_a_table_of_every_study_before_anything_ran_and_says_that_nothing_has(make_plan, results):
    plan = make_plan(STUDY)
    assert NAME in table_names(plan)
    assert NAME in table_names(make_plan(STUDY.split("contrasts:")[0] + "contrasts: {}\n"))
    table = build_table(NAME, plan, collect(plan, results), read_predictions(plan, results))
    assert set(text_of(table)["over test items"]) == {"-"}
    assert set(text_of(table)["n"]) == {"0 of 3"}


def test_what_is_resampled_is_what_the_data_set_declares():
    kinds = {name: facts.clusters for name, facts in catalogue().items()}
    assert (kinds["smallnorb"], kinds["affnist"], kinds["mnist"]) == ("object", "digit", None)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_with_all_its_numbers_it_fits_a_page_in_two_columns(make_plan, results, write_run):
    names = ("a method with a rather long name and 3 iterations", "another one with another loss and 2 iterations")
    plan = make_plan(STUDY.replace("the first", names[0]).replace("the second", names[1]))
    for run in plan.runs:
        right = objects_wrong(run.experiment, run.variant, run.seed)
        lines = ("smallNORB (JPEG-75 copy): train-dat.mat: md5 12, not 34",) if run.experiment == "norb" else ()
        folder = write_run(run, error=100 * (1 - float(np.mean(right))), unofficial=lines)
        leave_items(folder, right, factor_instance=INSTANCES)
    table = build_table(NAME, plan, collect(plan, results), read_predictions(plan, results))
    assert table.numbers["items_low"].notna().all()
    write_table(table, results)
    text = "\\documentclass[twocolumn]{article}\\usepackage{array,booktabs}\\begin{document}\\input{%s}\\end{document}"
    (results / "all.tex").write_text(text % NAME, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=results, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    log = (results / "all.log").read_text(encoding="utf-8", errors="replace")
    too_wide = [line for line in re.findall(r"Overfull.*", log) if float(re.search(r"\(([\d.]+)pt", line)[1]) > 1]
    assert too_wide == []
