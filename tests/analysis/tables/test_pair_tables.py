"""Tables of pairs of networks at equal familiar error."""

import pytest
from studies import FULL, NOVEL, ours_of, text_of

AFFNIST = """\
name: affine
seeds: [0, 1, 2, 3, 4]
experiments:
  affnist: {data: {name: affnist}}
variants:
  cnn_matched: {model: cnn_matched, label: CNN}
  capsnet: {model: capsnet, label: CapsNet, training: {match: cnn_matched}}
"""


def test_affnist_has_a_row_per_pair_with_the_difference_beside_the_papers(make_plan, write_run, made):
    plan = make_plan(AFFNIST)
    for run in plan.runs:
        ours = run.variant == "capsnet"
        error, familiar = (21.0, 0.76) if ours else (34.0, 0.80)
        write_run(run, error=error + run.seed / (10 if ours else 5), familiar=familiar)
    (row,) = text_of(made("affnist", plan)).to_dict("records")
    assert row["pair"] == "CapsNet / CNN"
    assert row["novel (error %)"] == "21.20 / 34.40"
    assert row["difference (points)"].startswith("−13.20 [−13.40, −13.00]")
    assert row["verdict"] == "supported"
    assert row["paper"] == "−13 points (21 / 34)"
    assert (row["familiar (error %)"], row["paper's"], row["n"]) == ("0.76 / 0.80", "0.77 / 0.78", "5 of 5")


def test_novel_views_are_a_pair_and_a_row_per_network(novel, made):
    table = made("hinton-table2", novel)
    (pair,) = text_of(table).to_dict("records")
    assert pair["pair"] == "capsules / cnn"
    assert pair["paper"] == "−32.5 % (13.5 / 20)"
    assert pair["familiar (error %)"] == "3.68 / 3.70"
    assert list(text_of(table).columns).index("verdict") < 6
    networks = text_of(table, 1)
    assert networks[["network", "test (error %)", "published", "familiar (error %)"]].to_numpy().tolist() == [
        ["capsules", "13.50 ± 0.50", "13.5", "3.68 ± 0.10"],
        ["cnn", "20.50 ± 0.50", "20", "3.70 ± 0.10"],
    ]


def test_a_note_says_what_was_matched_and_how_well(novel, made):
    (note,) = (note for note in made("hinton-table2", novel).notes if note.startswith("Matched"))
    words = ("capsules (azimuth)", "familiar error of cnn", "0.02 points below it")
    assert [word for word in words if word not in note] == []


def test_what_has_not_run_yet_is_matched_to_nothing_yet(make_plan, made):
    (note,) = (note for note in made("hinton-table2", make_plan(NOVEL)).notes if note.startswith("Matched"))
    assert "no result yet: capsules (azimuth)" in note


@pytest.mark.parametrize(
    ("capsules", "cnn", "why"),
    [
        ([3.7, 3.55, 3.7], [3.7, 3.7, 3.7], "3.55 against 3.70, seed 1"),
        ([3.7, 3.7, 9.0], [3.7, 3.5, 3.7], "9.00 against 3.70, seed 2"),
        ([3.7, 3.7, 3.7], [3.7, 3.7, None], "seed 2: no result of cnn"),
    ],
)
def test_a_familiar_error_that_is_not_matched_is_not_comparable(make_plan, write_run, made, capsules, cnn, why):
    plan = make_plan(NOVEL)
    for run, familiar in zip(plan.runs, [*capsules, *cnn], strict=True):
        if familiar is not None:
            write_run(run, error=13.4 + run.seed / 10, familiar=familiar)
    table = made("hinton-table2", plan)
    assert text_of(table)["verdict"][0].startswith("not comparable (")
    assert text_of(table, 1)["verdict"][0].startswith("not comparable (")
    assert any(f"familiar error not matched ({why})" in note for note in table.notes)


def test_a_network_without_a_published_value_can_be_unmatched_too(make_plan, write_run, made):
    more = NOVEL.replace("{model: matrix_capsnet,", "{model: matrix_capsnet, options: {routing: {iterations: 4}},")
    plan = make_plan(more)
    for run in plan.runs:
        write_run(run, familiar=3.0 if run.variant == "cnn" else 3.2)
    table = made("hinton-table2", plan)
    assert text_of(table, 1)["verdict"][0] == "-"
    (note,) = (note for note in table.notes if note.startswith("Matched"))
    assert "it ended 0.20 points above it" in note
    assert "familiar error not matched (3.20 against 3.00, seed 0)" in note


def test_a_control_whose_test_is_familiar_has_no_published_familiar_value(make_plan, made):
    control = make_plan(FULL.replace("{name: mnist}", "{name: affnist, options: {train: affine}}"))
    assert ours_of(made("affnist", control).numbers)["published_familiar"].isna().all()
    plan = make_plan(FULL.replace("{name: mnist}", "{name: affnist}"))
    assert list(ours_of(made("affnist", plan).numbers)["published_familiar"]) == [0.77]
