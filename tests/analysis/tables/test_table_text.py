import re

import pandas as pd
import pytest
from studies import FULL, NOVEL, PAIRS, ours_of

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import for_people, notes, paper_table

CAVEAT = "Remarks on published values: 0.25 ± 0.005: what public code reaches is 0.25 to 0.40."


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
    assert (row["time per run"], row["parameters"]) == (("1 min 30 s", "1,234,567") if numbers else ("-", "-"))


def test_the_reason_why_rows_are_not_comparable_is_a_note_below_the_table(make_plan, table_of):
    cut = FULL.replace("{model: capsnet}", "{model: capsnet, options: {routing: {detach: true}, conv_channels: 8}}")
    plan = make_plan(cut + "training: {epochs: 2, batch_size: 8, learning_rate: 0.01}\n")
    why = (
        "15,000 steps, not 300,000 or more; routing.detach True, not False; conv_channels 8, not 256; "
        "batch_size 8, not 128; learning_rate 0.01, not 0.001"
    )
    table = table_of(plan, [1.0] * 3)
    assert table.loc[0, "verdict"] == f"not comparable: {why}"
    twice = pd.concat([table, table])
    assert list(for_people(twice)["verdict"]) == ["not comparable (a)"] * 2
    assert notes(twice) == [f"(a) {why}.", CAVEAT]


def test_variants_are_named_where_nothing_else_tells_rows_apart(make_plan, plan, table_of):
    assert "variant" not in for_people(table_of(plan, ["missing"] * 9))
    alike = make_plan(FULL + "  detached: {model: capsnet, options: {routing: {detach: true}}}\n")
    assert list(for_people(table_of(alike, ["missing"] * 6))["variant"]) == ["capsnet", "detached"]


def test_variants_are_shown_by_their_labels(make_plan, table_of):
    alike = FULL + "  detached: {model: capsnet, label: detached couplings, options: {routing: {detach: true}}}\n"
    table = table_of(make_plan(alike), ["missing"] * 6)
    assert list(table["variant"]) == ["capsnet", "detached"]
    assert list(for_people(table)["variant"]) == ["capsnet", "detached couplings"]


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
    assert for_people(ours_of(paper_table("sabour-table1", plan, collect(plan, results))))["time per run"][0] == text


def test_notes_go_on_after_z(make_plan, write_run, results):
    sizes = range(1, 29)
    plan = make_plan(FULL.replace("{model: capsnet}", f"{{model: capsnet, grid: {{conv_channels: {list(sizes)}}}}}"))
    for run in plan.runs:
        write_run(run)
    table = ours_of(paper_table("sabour-table1", plan, collect(plan, results)))
    marks = [re.search(r"\((\w+)\)", verdict)[1] for verdict in for_people(table)["verdict"]]
    assert marks[:2] + marks[24:] == ["a", "b", "y", "z", "aa", "ab"]
    assert len(set(marks)) == 28
    assert notes(table)[26] == "(aa) conv_channels 27, not 256."


def test_caveats_of_the_published_values_are_named_once(make_plan, table_of):
    plan = make_plan(
        FULL + "  detached: {model: capsnet, options: {routing: {detach: true}}}\n  cnn: {model: cnn_sabour_mnist}\n"
    )
    *_, last = notes(table_of(plan, ["missing"] * 9))
    assert last == CAVEAT.removesuffix(".") + ". 0.39: no std given; the dropout rate is not in the paper."


def test_a_table_without_pairs_has_one_error(plan, table_of):
    text = for_people(table_of(plan, [1.0] * 9))
    assert [column for column in text if "digit" in column or "pair" in column] == []
    assert "ours (error %)" in text


@pytest.fixture
def paired(make_plan, write_run, results):
    plan = make_plan(PAIRS)
    for run in plan.runs[:3]:
        write_run(run, error=7.0 + run.seed / 2, per_digit=3.75 + run.seed / 4)
    return ours_of(paper_table("sabour-table1", plan, collect(plan, results)))


def test_the_two_errors_of_pairs_have_names_that_cannot_be_confused(paired):
    row = for_people(paired).iloc[0]
    assert row["ours (error %; of pairs: pair-exact)"] == "7.50 ± 0.50"
    assert row["per-digit (error %)"] == "4.00 ± 0.25"
    assert "ours (error %)" not in row
    assert (paired.loc[0, "mean"], paired.loc[0, "per_digit_mean"]) == (7.5, 4.0)


def test_the_pair_exact_error_is_compared_with_the_paper(paired):
    row = for_people(paired).iloc[0]
    assert (row["published"], row["difference"], row["verdict"]) == ("7.5", "+0.00", "reproduced")
    assert "7.5: pair-exact error; no std given" in notes(paired)[-1]
    assert not any("per-digit" in note for note in notes(paired))


def test_familiar_and_novel_errors_are_shown_with_the_published_ones(novel):
    text = for_people(novel)
    shown = text[["familiar (error %)", "published familiar", "ours (test, error %)", "published"]]
    assert shown.to_numpy().tolist() == [
        ["3.68 ± 0.10", "3.7", "13.50 ± 0.50", "13.5"],
        ["3.70 ± 0.10", "3.7", "20.50 ± 0.50", "20"],
    ]
    assert "ours (error %)" not in text
    assert list(text["verdict"]) == ["reproduced", "reproduced"]
    assert (novel.loc[0, "familiar_mean"], novel.loc[0, "published_familiar"]) == (pytest.approx(3.68), 3.7)


def test_a_note_says_what_was_matched_and_how_well(novel):
    (note,) = (note for note in notes(novel) if note.startswith("Matched"))
    words = ("capsules (azimuth)", "familiar error of cnn", "overshoot 0.02 points")
    assert [word for word in words if word not in note] == []


def test_what_has_not_run_yet_is_matched_to_nothing_yet(make_plan, results):
    plan = make_plan(NOVEL)
    (note,) = (n for n in notes(paper_table("hinton-table2", plan, collect(plan, results))) if n.startswith("Matched"))
    assert note.endswith("no result yet.")


DIAGNOSTICS = [
    {"iteration": 1, "entropy": 1.0, "mass": 0.1, "logit": 4.0, "range": 2.0},
    {"iteration": 2, "entropy": 0.42, "mass": None, "logit": 250.0, "range": 0.0},
]


def test_runs_that_are_stuck_at_chance_are_counted_and_a_note_says_what_their_routing_does(plan, write_run, results):
    for run in plan.runs[:3]:
        write_run(run, error=90.0, stuck_at_chance=run.seed > 0, diagnostics=DIAGNOSTICS)
    table = paper_table("sabour-table1", plan, collect(plan, results))
    assert list(for_people(table)["n"]) == ["3 of 3, 2 stuck at chance", "0 of 3", "0 of 3"]
    (note,) = (note for note in notes(table) if note.startswith("Stuck at chance"))
    words = [
        "2 runs of capsnet-iterations1", "seed 1: iteration 1: coupling entropy 1.00",
        "iteration 2: coupling entropy 0.42, highest class score 250", "no gradient", "all classes score alike",
        "runs.csv",
    ]  # fmt: skip
    assert [word for word in words if word not in note] == []
    assert "seed 0" not in note


def test_a_stuck_network_without_routing_has_no_diagnostics(plan, write_run, results):
    write_run(plan.runs[0], error=90.0, stuck_at_chance=True, diagnostics=[])
    (note,) = (n for n in notes(paper_table("sabour-table1", plan, collect(plan, results))) if n.startswith("Stuck"))
    assert "1 run of capsnet-iterations1" in note
    assert "routing" not in note


def test_rows_that_papers_alone_have_show_nothing_of_ours(make_plan, results):
    plan = make_plan(FULL)
    text = for_people(paper_table("sabour-table1", plan, collect(plan, results)))
    assert text.iloc[1:][["ours (error %)", "95 % interval", "n", "difference", "time per run"]].eq("-").all(axis=None)
    assert "variant" not in text
    assert "experiment" not in text
