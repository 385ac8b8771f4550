"""What the tables say of pairs, of novel tests and of files that are not official."""

import re
from csv import reader

import pytest
from studies import FULL, NOVEL, PAIRS

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import caption, for_people, notes, paper_table, write_table

FILES = ("smallNORB (JPEG-75 copy): train-dat.mat: md5 12, the official file's is 34", "test-dat.mat: md5 5, not 6")
NOT_OFFICIAL = "not the official files (runs.csv has their checksums): "


@pytest.fixture
def paired(make_plan, write_run, results):
    plan = make_plan(PAIRS)
    for run in plan.runs[:3]:
        write_run(run, error=7.0 + run.seed / 2, per_digit=3.75 + run.seed / 4)
    return paper_table("sabour-table1", plan, collect(plan, results))


def test_of_pairs_two_errors_stand_under_names_that_cannot_be_confused(paired):
    row = for_people(paired).iloc[0]
    assert row["ours (error %; of pairs: pair-exact)"] == "7.50 ± 0.50"
    assert row["per-digit (error %)"] == "4.00 ± 0.25"
    assert "ours (error %)" not in row
    assert (paired.loc[0, "mean"], paired.loc[0, "per_digit_mean"]) == (7.5, 4.0)


def test_the_pair_exact_error_is_what_the_paper_is_held_against(paired):
    row = for_people(paired).iloc[0]
    assert (row["published"], row["difference"], row["verdict"]) == ("7.5", "+0.00", "reproduced")
    assert "7.5: pair-exact error; no std given." in notes(paired)[-1]
    assert not any("per-digit" in note for note in notes(paired))


@pytest.fixture
def novel(make_plan, write_run, results):
    plan = make_plan(NOVEL)
    for run in plan.runs[:3]:
        write_run(run, error=13.0 + run.seed / 2, familiar=3.5 + run.seed / 10)
    return paper_table("hinton-table2", plan, collect(plan, results))


def test_familiar_and_novel_errors_stand_beside_the_published_ones(novel):
    text = for_people(novel)
    shown = text[["familiar (error %)", "published familiar", "ours (test, error %)", "published"]]
    assert shown.to_numpy().tolist() == [["3.60 ± 0.10", "3.7", "13.50 ± 0.50", "13.5"], ["-", "3.7", "-", "20"]]
    assert "ours (error %)" not in text
    assert list(text["verdict"]) == ["reproduced", "not run"]
    assert (novel.loc[0, "familiar_mean"], novel.loc[0, "published_familiar"]) == (pytest.approx(3.6), 3.7)


def test_a_run_that_did_not_reach_the_familiar_accuracy_is_not_comparable(make_plan, write_run, results):
    plan = make_plan(NOVEL)
    for run in plan.runs[:3]:
        write_run(run, error=13.0 + run.seed / 2, familiar=3.5 + run.seed)
    table = paper_table("hinton-table2", plan, collect(plan, results))
    assert table.loc[0, "verdict"] == "not comparable: a familiar accuracy of 96.30% was not reached"


def test_a_control_whose_test_is_familiar_stands_beside_no_familiar_value(make_plan, results):
    control = "{name: affnist, options: {train: affine}}"
    plan = make_plan(FULL.replace("{name: mnist}", control))
    table = paper_table("affnist", plan, collect(plan, results))
    assert table["published_familiar"].isna().all()
    novel = make_plan(FULL.replace("{name: mnist}", "{name: affnist}"))
    assert list(paper_table("affnist", novel, collect(novel, results))["published_familiar"]) == [0.77]


def test_the_caption_says_so_where_training_stopped_on_the_familiar_test(make_plan, plan):
    assert caption("sabour-table1", plan).endswith("Nothing was chosen on the test set.")
    said = caption("hinton-table2", make_plan(NOVEL))
    assert said.endswith(
        "Training was stopped on the familiar test, as in the papers; else nothing was chosen on the test set."
    )


def test_a_line_about_files_stands_once_though_seeds_differ(make_plan, write_run, results):
    plan = make_plan(FULL)
    for run, lines in zip(plan.runs, [(), FILES, FILES[1:]], strict=True):
        write_run(run, error=0.2, unofficial=lines)
    table = paper_table("sabour-table1", plan, collect(plan, results))
    assert table.loc[0, "unofficial"] == "; ".join(FILES)


def test_matrix_capsules_are_told_apart_by_what_the_paper_varies(novel):
    assert list(novel["method"]) == ["matrix capsules (matrix pose, spread loss, with coordinates)", "CNN (H18)"]


def test_capsnets_are_told_apart_by_loss_and_routing(make_plan, results):
    variants = "  em: {model: capsnet, options: {routing: em, loss: spread, iterations: 2}}\n"
    plan = make_plan(FULL + variants + "  uniform: {model: capsnet, options: {routing: uniform}}\n")
    table = paper_table("sabour-table1", plan, collect(plan, results))
    assert list(table["method"]) == ["CapsNet", "CapsNet (spread loss)", "CapsNet"]
    assert list(table["routing"]) == ["3", "em 2", "uniform"]
    assert list(table["published"].fillna("none")) == ["0.25 ± 0.005", "none", "none"]


def test_later_networks_stand_beside_their_own_papers(make_plan, results):
    plan = make_plan(FULL + "  deepcaps: {model: deepcaps}\n  efficient: {model: efficient_capsnet}\n")
    table = paper_table("sabour-table1", plan, collect(plan, results))
    assert list(table["published"]) == ["0.25 ± 0.005", "0.28", "0.26"]
    plan = make_plan("""\
name: norb
seeds: [0]
experiments: {norb: {data: {name: smallnorb}}}
variants: {efficient: {model: efficient_capsnet}}
""")
    assert list(paper_table("hinton-table1", plan, collect(plan, results))["published"]) == ["2.54 [from memory]"]


@pytest.fixture
def unofficial(make_plan, write_run, results):
    """Three rows: of unofficial files; of the official ones; of another unofficial file. Table, csv, md, tex."""
    plan = make_plan(FULL + "  r1: {model: capsnet, options: {iterations: 1}}\n  cnn: {model: cnn_sabour_mnist}\n")
    for run in plan.runs:
        lines = {"capsnet": FILES, "r1": (), "cnn": FILES[1:]}[run.variant]
        write_run(run, error=0.2 + run.seed / 100, unofficial=lines)
    table = paper_table("sabour-table1", plan, collect(plan, results))
    return table, *write_table(table, "sabour-table1", results / "tables", caption("sabour-table1", plan))


def test_rows_of_unofficial_files_carry_a_dagger_and_are_not_comparable(unofficial):
    table = unofficial[0]
    text = for_people(table)
    assert list(text["data"]) == ["mnist†", "mnist", "mnist‡"]
    assert list(table["verdict"].str.contains("not the official files")) == [True, False, True]
    assert list(text["verdict"]) == ["not comparable (a)", "missed: lower by 0.08", "not comparable (a)"]
    assert notes(table)[:3] == [
        "(a) not the official files.",
        f"† {NOT_OFFICIAL}smallNORB (JPEG-75 copy): train-dat.mat, test-dat.mat.",
        f"‡ {NOT_OFFICIAL}test-dat.mat.",
    ]


def test_unofficial_files_are_named_in_every_file_of_a_table(unofficial):
    _, csv, markdown, latex = unofficial
    rows = list(reader(csv.read_text(encoding="utf-8").splitlines()))
    lines, verdict = rows[0].index("unofficial"), rows[0].index("verdict")
    assert [row[lines] for row in rows[1:]] == ["; ".join(FILES), "", FILES[1]]
    assert rows[1][verdict] == "not comparable: not the official files"

    text = markdown.read_text(encoding="utf-8")
    assert re.findall(r"^\| (mnist\S*)", text, re.MULTILINE) == ["mnist†", "mnist", "mnist‡"]
    assert f"\n† {NOT_OFFICIAL}smallNORB (JPEG-75 copy): train-dat.mat, test-dat.mat.\n" in text
    assert "\n(a) not the official files.\n" in text

    text = latex.read_text(encoding="utf-8")
    assert re.findall(r"^(mnist\S*) &", text, re.MULTILINE) == [r"mnist$\dagger$", "mnist", r"mnist$\ddagger$"]
    assert rf"$\dagger$ {NOT_OFFICIAL}smallNORB (JPEG-75 copy): train-dat.mat, test-dat.mat." in text
    assert "(a) not the official files." in text
    assert {"†", "‡", "±"}.isdisjoint(text)
