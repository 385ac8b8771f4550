"""The papers' tables: which rows and columns, which numbers, what stands below."""

import math
import re
from typing import get_args

import pytest
from studies import EVERY_DATA_SET, FULL, NOVEL, PAIRS, ours_of, text_of

from capsbench.analysis.collect import collect
from capsbench.analysis.table_names import table_names
from capsbench.analysis.tables import TABLES, build_table
from capsbench.analysis.tables.paper import caption
from capsbench.study.data_sets import Table

GRID = "{model: capsnet, grid: {routing.iterations: [1, 3], decoder: [null, fully_connected]}}"
BOTH = FULL.replace("{model: capsnet}", GRID).replace(
    "  mnist: {data: {name: mnist}}\n", "  mnist: {data: {name: mnist}}\n  pairs: {data: {name: multimnist}}\n"
)


def test_there_is_a_row_for_each_variant_in_the_order_of_the_study(plan, numbers_of):
    table = numbers_of(plan, ["missing"] * 9)
    assert list(table["variant"]) == ["capsnet-iterations1", "capsnet-iterations3", "cnn_matched"]
    assert list(table["method"]) == ["CapsNet", "CapsNet", "CNN (matched size)"]
    assert list(table["routing"]) == ["1", "3", "-"]
    assert list(table["reconstruction"]) == ["yes", "yes", "-"]


def test_numbers_stay_numbers(plan, numbers_of):
    row = numbers_of(plan, [1.0, 2.0, 3.0] + ["missing"] * 6).iloc[0]
    assert (row["mean"], row["std"], row["n"], row["planned"]) == (2.0, 1.0, 3, 3)
    assert (row["low"], row["high"]) == pytest.approx((0.0, 4.484138), abs=1e-6)  # no error is below 0
    assert (row["parameters"], row["seconds"]) == (1234567, 90.0)
    assert row["runs"].split() == [run.key for run in plan.runs[:3]]


def test_the_table_of_s17_has_its_five_rows_whether_they_ran_or_not(make_plan, table_of):
    table = table_of(make_plan(FULL), [0.24, 0.25, 0.26])
    text = text_of(table)
    assert text[["network", "routing", "reconstruction", "published"]].to_numpy().tolist() == [
        ["baseline CNN (S17)", "-", "-", "0.39"],
        ["CapsNet", "1", "no", "0.34 ± 0.032"],
        ["CapsNet", "1", "yes", "0.29 ± 0.011"],
        ["CapsNet", "3", "no", "0.35 ± 0.036"],
        ["CapsNet", "3", "yes", "0.25 ± 0.005"],
    ]
    assert list(text["verdict"]) == [*["not run"] * 4, "same"]
    assert list(text["MNIST (error %)"]) == [*["-"] * 4, "0.25 ± 0.01"]
    assert list(text["n"]) == [*["-"] * 4, "3 of 3"]


def test_single_digits_and_pairs_stand_side_by_side(make_plan, table_of):
    plan = make_plan(BOTH)
    table = table_of(plan, [*[0.30, 0.31, 0.32] * 3, *[0.24, 0.25, 0.26], *[7.0] * 9, *[5.1, 5.2, 5.3]])
    text = text_of(table)
    assert list(text.columns) == [
        "network", "routing", "reconstruction", "MNIST: ours", "published", "MultiMNIST: ours", "published",
    ]  # fmt: skip
    rows = text.to_numpy().tolist()
    assert [row[4] for row in rows] == ["0.39", "0.34 ± 0.032", "0.29 ± 0.011", "0.35 ± 0.036", "0.25 ± 0.005"]
    assert [row[6] for row in rows] == ["8.1", "-", "7.5", "-", "5.2"]
    assert rows[0][3::2] == ["not run", "not run"]
    assert rows[4][3] == "0.25 ± 0.01: same (3 of 3)"
    assert rows[4][5] == "5.20 ± 0.10: undecided (a) (3 of 3)"  # 539 pairs of the paper's ten million
    assert any(note.startswith("(a) 100 seeds would not decide") for note in table.notes)
    assert rows[1][5] == "7.00 ± 0.00 (3 of 3)"  # no paper has this row


def test_a_second_experiment_on_the_same_data_has_lines_that_name_it(make_plan, table_of):
    plan = make_plan(FULL.replace("experiments:", "experiments:\n  cut: {data: {name: mnist, train_images: 100}}"))
    names = list(text_of(table_of(plan, [0.3] * 6))["network"])
    assert names[-2:] == ["CapsNet", "CapsNet (mnist)"]


def test_variants_that_differ_in_nothing_that_a_table_shows_are_named_by_their_labels(make_plan, table_of):
    alike = FULL + "  detached: {model: capsnet, label: detached couplings, options: {routing: {detach: true}}}\n"
    names = list(text_of(table_of(make_plan(alike), [0.3] * 6))["network"])
    assert names[-2:] == ["capsnet", "detached couplings"]


def test_their_labels_leave_out_what_columns_say(make_plan, table_of):
    variants = "".join(
        f"  {name}: {{model: capsnet, label: {label}, options: {options}, grid: {{routing.iterations: [1, 3]}}}}\n"
        for name, label, options in (("plain", "CapsNet", "{}"), ("detached", "Detached", "{routing: {detach: true}}"))
    )
    plan = make_plan(FULL.replace("  capsnet: {model: capsnet}\n", variants).replace("[capsnet]", "[plain, detached]"))
    rows = text_of(table_of(plan, [0.3] * 12))[["network", "routing", "n"]].to_numpy().tolist()
    assert [row[:2] for row in rows if row[2] != "-"] == [
        ["CapsNet", "1"],
        ["Detached", "1"],
        ["CapsNet", "3"],
        ["Detached", "3"],
    ]


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([0.24, 0.25, 0.26], "same"),
        ([0.34, 0.35, 0.36], "worse by at least"),
        ([0.14, 0.15, 0.16], "better by at least"),
        ([0.10, 0.25, 0.40], "undecided"),
    ],
)
def test_the_verdict_stands_beside_our_number_within_six_columns(make_plan, table_of, errors, verdict):
    text = text_of(table_of(make_plan(FULL), errors))
    columns = list(text.columns)
    assert columns.index("verdict") == columns.index("MNIST (error %)") + 1 < 6
    assert text["verdict"].iloc[4].startswith(verdict)


def test_why_a_row_is_not_comparable_is_a_note_below(make_plan, table_of):
    cut = FULL.replace("{model: capsnet}", "{model: capsnet, options: {routing: {detach: true}, conv_channels: 8}}")
    plan = make_plan(cut + "training: {epochs: 2, batch_size: 8, learning_rate: 0.01}\n")
    table = table_of(plan, [1.0] * 3)
    assert text_of(table)["verdict"].iloc[4] == "not comparable (a)"
    assert table.notes[0] == (
        "(a) 15,000 steps, not 300,000 or more; routing.detach True, not False; conv_channels 8, not 256; "
        "batch_size 8, not 128; learning_rate 0.01, not 0.001."
    )


def test_a_remark_on_several_published_values_stands_once_below_the_table(make_plan, table_of):
    (remarks,) = (note for note in table_of(make_plan(BOTH), [0.3] * 24).notes if note.startswith("Remarks"))
    assert "7.5, 5.2: pair-exact error; " in remarks
    assert remarks.count("pair-exact") == 1
    assert "5.2: the text of the paper says 5.0" in remarks


def test_letters_of_notes_go_on_after_z(make_plan, table_of):
    sizes = list(range(1, 29))
    plan = make_plan(FULL.replace("{model: capsnet}", f"{{model: capsnet, grid: {{conv_channels: {sizes}}}}}"))
    table = table_of(plan, [1.0] * len(plan.runs))
    verdicts = [text for text in text_of(table)["verdict"] if text.startswith("not comparable")]
    marks = [re.search(r"\((\w+)\)", verdict)[1] for verdict in verdicts]
    assert marks[:2] + marks[24:] == ["a", "b", "y", "z", "aa", "ab"]
    assert table.notes[26] == "(aa) conv_channels 27, not 256."


def test_a_stand_in_has_no_rows_that_did_not_run(plan, table_of):
    text = text_of(table_of(plan, [1.0] * 9))
    assert len(text) == 3
    assert text["verdict"].iloc[0] == "not comparable (a)"


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [(["missing"] * 3, "not run"), ([*["failed"] * 2, "diverged"], "undecided"), (["running"] * 3, "not run")],
)
def test_a_cell_without_a_result_says_so(make_plan, numbers_of, ends, verdict):
    row = numbers_of(make_plan(FULL), ends).iloc[0]
    assert row["verdict"].startswith(verdict)
    assert math.isnan(row["difference"])


def test_every_table_of_the_papers_has_a_title_and_a_source():
    assert set(get_args(Table)) == set(TABLES)
    assert all(table.title and table.published for table in TABLES.values())


def test_each_run_stands_in_one_table(make_plan, results):
    plan = make_plan(EVERY_DATA_SET)
    runs = collect(plan, results)
    rows = {name: list(ours_of(build_table(name, plan, runs).numbers)["experiment"]) for name in TABLES}
    assert rows == {
        "sabour-table1": ["digits", "pairs"],
        "affnist": ["affine", "placed", "generated", "official"],
        "hinton-table1": ["full"],
        "hinton-table2": ["azimuth", "elevation"],
        "natural-images": ["cifar10"],
    }


def test_the_caption_names_study_source_and_what_was_chosen(make_plan, plan):
    said = caption("sabour-table1", plan)
    assert "Study 'small_study'" in said
    assert "Sabour, Frosst, Hinton 2017 (S17), Table 1" in said
    assert said.endswith("Nothing was chosen on the test set by the workflow.")
    said = caption("hinton-table2", make_plan(NOVEL))
    assert "training was stopped on the familiar test" in said
    assert said.endswith("nothing was chosen on the test set by the workflow.")


def test_generated_images_are_never_called_affnist(make_plan, made, write_run):
    plan = make_plan(EVERY_DATA_SET)
    for run in plan.runs:
        write_run(run)
    table = made("affnist", plan)
    row = next(row for row in table.grids[-2].rows if row.texts[0].startswith("generated"))
    assert not any("affNIST" in text for text in row.texts)
    assert row.texts[2].startswith("not comparable")
    assert any("affnist-generated is not affnist" in note for note in table.notes)


def test_published_values_without_a_row_of_ours_stand_in_a_second_block(make_plan, made):
    table = made("sabour-table1", make_plan(FULL))
    ours, others = table.grids
    assert others.heading == "published, not run here"
    assert len(others.columns) < len(ours.columns)
    (hvc,) = (row for row in others.rows if "homogeneous vector capsules" in row.texts[0])
    assert hvc.texts[1:] == ("B20", "MNIST", "0.17")
    assert hvc.keys == ()
    assert not any("CapsNet, 3 iterations" in row.texts[0] for row in others.rows)  # it has a row above


@pytest.mark.parametrize(
    ("data", "table", "words"),
    [
        ("{name: digits}", "sabour-table1", []),
        ("{name: toynorb}", "hinton-table1", []),
        ("{name: smallnorb}", "hinton-table1", ["Heinsen", "VB routing", "jitter and clutter", "small capsules"]),
        ("{name: affnist}", "affnist", ["VB routing", "Aff-CapsNet"]),
        ("{name: cifar10}", "natural-images", ["inverted dot-product", "DeepCaps, 7 networks"]),
    ],
)
def test_they_belong_to_the_table_and_the_data_set_that_the_study_fills(make_plan, made, data, table, words):
    found = made(table, make_plan(FULL.replace("{name: mnist}", data)))
    names = [row.texts[0] for each in found.grids if each.heading.startswith("published") for row in each.rows]
    assert [word for word in words if not any(word in name for name in names)] == []
    assert bool(names) == bool(words)


def test_table_1_of_h18_has_its_columns_and_all_its_rows(make_plan, made, write_run):
    norb = NOVEL.replace(
        "azimuth: {data: {name: smallnorb, options: {view: azimuth}}}", "norb: {data: {name: smallnorb}}"
    )
    plan = make_plan(norb.replace(", training: {match: cnn}", ""))
    for run in plan.runs:
        write_run(run, error=(1.8 if run.variant == "capsules" else 5.2) + run.seed / 100)
    table = made("hinton-table1", plan)
    text = text_of(table)
    assert list(text.columns) == [
        "iterations", "pose", "loss", "coordinates", "ours (error %)", "verdict", "published", "n",
    ]  # fmt: skip
    assert text[["iterations", "pose", "loss", "coordinates", "published"]].to_numpy().tolist() == [
        ["1", "matrix", "spread", "yes", "9.7"],
        ["2", "matrix", "spread", "yes", "2.2"],
        ["3", "matrix", "spread", "yes", "1.8"],
        ["5", "matrix", "spread", "yes", "3.9"],
        ["3", "vector", "spread", "yes", "2.9"],
        ["3", "matrix", "spread", "no", "2.6"],
        ["3", "vector", "spread", "no", "3.2"],
        ["3", "matrix", "margin", "yes", "3.2"],
        ["3", "matrix", "cross-entropy", "yes", "5.8"],
        ["CNN (H18)", "-", "-", "-", "5.2"],
        ["3, 13 test crops", "matrix", "spread", "yes", "1.4"],
    ]
    ran = {n for n, text in enumerate(text["verdict"]) if text != "not run"}
    assert ran == {2, 9}
    assert text["ours (error %)"].iloc[2] == "1.81 ± 0.01"


def test_later_networks_are_compared_with_their_own_papers(make_plan, made):
    plan = make_plan(FULL + "  deepcaps: {model: deepcaps}\n  efficient: {model: efficient_capsnet}\n")
    table = ours_of(made("sabour-table1", plan).numbers)
    assert list(table["published"]) == ["0.25 ± 0.005", "accuracy 99.72", "0.26"]


@pytest.fixture
def paired(make_plan, made, write_run):
    plan = make_plan(PAIRS)
    for run in plan.runs[:3]:
        write_run(run, error=7.4 + run.seed / 10, per_digit=3.75 + run.seed / 4)
    return made("sabour-table1", plan)


def test_the_two_errors_of_pairs_have_columns_of_their_own(paired):
    row = text_of(paired).iloc[1]
    assert (row["MultiMNIST (error %)"], row["published"], row["per digit"]) == ("7.50 ± 0.10", "7.5", "4.00 ± 0.25")
    assert (paired.numbers.loc[0, "mean"], paired.numbers.loc[0, "per_digit_mean"]) == (pytest.approx(7.5), 4.0)
    assert any(re.search(r"7\.5, 5\.2: .*pair-exact error", note) for note in paired.notes)


def test_a_table_of_single_digits_has_no_error_per_digit(make_plan, table_of):
    assert not any("digit" in name for name in text_of(table_of(make_plan(FULL), [0.3] * 3)).columns)


def test_runs_at_chance_are_counted_and_a_note_says_what_their_routing_did(plan, write_run, made):
    diagnostics = [{"iteration": 1, "entropy": 0.42, "mass": None, "logit": 250.0, "range": 0.0}]
    for run in plan.runs[:3]:
        write_run(run, error=90.0, stuck_at_chance=run.seed > 0, diagnostics=diagnostics)
    table = made("sabour-table1", plan)
    assert text_of(table)["n"].iloc[0] == "3 of 3, 2 stuck at chance"
    (note,) = (note for note in table.notes if note.startswith("Stuck at chance"))
    words = ("2 runs of capsnet-iterations1", "seed 1: iteration 1: coupling entropy 0.42", "no gradient", "runs.csv")
    assert [word for word in words if word not in note] == []
    assert "seed 0" not in note


def test_unofficial_files_have_a_mark_and_are_named_once(make_plan, write_run, made):
    lines = ("copy: train.mat: md5 12, the official file has 34", "copy: test.mat: md5 5, not 6")
    plan = make_plan(FULL + "  cnn: {model: cnn_sabour_mnist}\n")
    for run in plan.runs:
        write_run(run, error=0.25, unofficial=lines if run.variant == "capsnet" else lines[1:])
    table = made("sabour-table1", plan)
    text = text_of(table)
    assert (text["MNIST (error %)"].iloc[4], text["MNIST (error %)"].iloc[0]) == ("0.25 ± 0.00¶", "0.25 ± 0.00§")
    assert text["verdict"].iloc[4].startswith("not comparable (")
    assert [note for note in table.notes if note[0] in "§¶"] == [
        "§ not the official files (runs.csv has their checksums): copy: test.mat.",
        "¶ not the official files (runs.csv has their checksums): copy: train.mat, test.mat.",
    ]
    assert ours_of(table.numbers)["unofficial"].iloc[0] == "; ".join(lines)


@pytest.mark.parametrize(
    ("tables", "names"),
    [
        ("", ["sabour-table1", "claims", "test_items", "routings", "cost", "coverage"]),
        ("tables: [cost, hinton-table2]\n", ["cost", "hinton-table2"]),
        ("tables: []\n", []),
        ("tables: [{name: mine}]\n", ["sabour-table1", "claims", "test_items", "routings", "cost", "coverage", "mine"]),
        ("tables: [cost, {name: mine}]\n", ["cost", "mine"]),
    ],
)
def test_the_names_of_the_tables_are_known_before_anything_ran(make_plan, tables, names):
    assert table_names(make_plan(FULL + tables)) == names


def test_contrasts_and_the_summary_are_tables_where_there_are_some(make_plan, plan):
    assert "contrasts" in table_names(plan)
    assert "summary" not in table_names(plan)
    assert "summary" in table_names(
        make_plan(PAIRS.replace("experiments:", "experiments:\n  one: {data: {name: mnist}}"))
    )


def test_networks_of_one_name_that_differ_share_no_row(make_plan, table_of):
    matched = "{model: cnn_matched, label: 'CNN (matched size%s)', options: {matched_to: {name: capsnet, decoder: %s}}}"
    text = BOTH.split("variants:")[0] + (
        f"variants:\n  small: {matched % ('', 'null')}\n  large: {matched % (', decoder counted', 'fully_connected')}\n"
    )
    text = text.replace("{data: {name: multimnist}}", "{data: {name: multimnist}, variants: [large]}")
    shown = text_of(table_of(make_plan(text), [*[1.1] * 3, *[1.0] * 3, *[27.0] * 3]))
    ours = shown[shown["network"].str.startswith("CNN (matched size")]
    assert ours[["network", "MNIST: ours", "MultiMNIST: ours"]].to_numpy().tolist() == [
        ["CNN (matched size)", "1.10 ± 0.00 (3 of 3)", "-"],
        ["CNN (matched size, decoder counted)", "1.00 ± 0.00 (3 of 3)", "27.00 ± 0.00 (3 of 3)"],
    ]
