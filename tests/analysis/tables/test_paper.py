import math
import re
from typing import get_args

import pytest
from studies import EVERY_DATA_SET, FULL, NOVEL, ours_of

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import TABLES, caption, for_people, paper_table, write_table
from capsbench.study.data_sets import Table


def test_there_is_a_row_for_each_variant_in_the_order_of_the_study(plan, table_of):
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
    ("ends", "verdict"),
    [
        ([1.0, 1.0, 1.0], "not comparable: digits is not mnist; 20 steps, not 300,000 or more"),
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
def test_a_full_study_is_compared_with_the_paper(make_plan, table_of, errors, verdict, difference):
    row = for_people(table_of(make_plan(FULL), errors)).iloc[0]
    assert row[["data", "published", "verdict", "difference"]].to_list() == [
        "mnist", "0.25 ± 0.005", verdict, difference,
    ]  # fmt: skip


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
    runs = collect(plan, results)
    rows = {name: list(ours_of(paper_table(name, plan, runs))["experiment"]) for name in TABLES}
    assert rows == {
        "sabour-table1": ["digits", "pairs"],
        "affnist": ["affine", "placed", "generated", "official"],
        "hinton-table1": ["full"],
        "hinton-table2": ["azimuth", "elevation"],
        "natural-images": ["cifar10"],
    }


def test_a_caption_names_the_table_of_the_paper(plan):
    said = {name: re.search(r"Published: (.*?)\. Nothing", caption(name, plan))[1] for name in TABLES}
    assert said["sabour-table1"] == (
        "Sabour, Frosst, Hinton 2017 (S17), Table 1; for later networks, the papers that published.yaml names"
    )
    assert said["affnist"].endswith("(S17), section 5.2")
    assert said["hinton-table1"].startswith("Hinton, Sabour, Frosst 2018 (H18), Table 1")
    assert said["hinton-table2"].endswith("(H18), Table 2")


def test_the_caption_says_so_where_training_stopped_on_the_familiar_test(make_plan, plan):
    assert caption("sabour-table1", plan).endswith("Nothing was chosen on the test set.")
    said = caption("hinton-table2", make_plan(NOVEL))
    assert "training was stopped on the familiar test" in said
    assert said.endswith("nothing was chosen on the test set.")


def test_generated_images_are_never_called_affnist(make_plan, write_run, results):
    plan = make_plan(EVERY_DATA_SET)
    for run in plan.runs:
        write_run(run)
    table = ours_of(paper_table("affnist", plan, collect(plan, results)))
    assert list(for_people(table)["data"]) == ["affdigits", "mnist-translated", "affnist-generated", "affnist"]
    text = for_people(table[table["data"] == "affnist-generated"])
    assert not any(re.search(r"\baffnist\b(?!-generated)", str(cell), re.IGNORECASE) for cell in text.iloc[0])
    assert table.loc[2, "verdict"].startswith("not comparable: affnist-generated is not affnist; ")
    assert table["difference"].isna()[:3].all()


def test_other_routings_are_named_and_have_no_published_value(make_plan, results):
    more = "  em: {model: capsnet, options: {routing: em}}\n  uniform: {model: capsnet, options: {routing: uniform}}\n"
    plan = make_plan(FULL + more)
    table = ours_of(paper_table("sabour-table1", plan, collect(plan, results)))
    assert list(table["routing"]) == ["3", "EM 3", "uniform"]
    assert list(table["verdict"]) == ["not run", "no published value", "no published value"]


@pytest.fixture
def matched(make_plan, write_run, results):
    """Capsules and the CNN that they are matched to, from the familiar errors of both by seed; None: no run."""

    def make(capsules, cnn):
        plan = make_plan(NOVEL)
        for run, familiar in zip(plan.runs, [*capsules, *cnn], strict=True):
            if familiar is not None:
                write_run(run, error=13.4 + run.seed / 10, familiar=familiar)
        return paper_table("hinton-table2", plan, collect(plan, results)).iloc[0]

    return make


def test_the_overshoot_is_the_mean_over_seeds_of_what_the_familiar_error_is_below_its_goal(matched):
    row = matched([3.65, 3.7, 3.78], [3.7, 3.8, 3.8])
    assert row["matched_to"] == "cnn"
    assert row["overshoot"] == pytest.approx((0.05 + 0.1 + 0.02) / 3)
    assert row["verdict"] == "reproduced"


@pytest.mark.parametrize(
    ("capsules", "cnn", "why"),
    [
        ([3.7, 3.55, 3.7], [3.7, 3.7, 3.7], "3.55 against 3.70, seed 1"),
        ([3.7, 3.7, 9.0], [3.7, 3.5, 3.7], "9.00 against 3.70, seed 2"),
        ([3.7, 3.7, 3.7], [3.7, 3.7, None], "seed 2: no result of cnn"),
    ],
)
def test_a_familiar_error_that_is_not_matched_is_not_comparable(matched, capsules, cnn, why):
    assert matched(capsules, cnn)["verdict"] == f"not comparable: familiar error not matched ({why})"


def test_a_method_without_a_published_value_can_be_unmatched_too(make_plan, write_run, results):
    plan = make_plan(
        NOVEL.replace("{model: matrix_capsnet,", "{model: matrix_capsnet, options: {routing: {iterations: 4}},")
    )
    for run in plan.runs:
        write_run(run, familiar=3.0 if run.variant == "cnn" else 3.05)
    assert paper_table("hinton-table2", plan, collect(plan, results))["verdict"][0] == "no published value"
    write_run(plan.runs[0], familiar=3.2)
    row = paper_table("hinton-table2", plan, collect(plan, results)).iloc[0]
    assert row["verdict"] == "not comparable: familiar error not matched (3.20 against 3.00, seed 0)"
    assert row["overshoot"] == pytest.approx(-0.1)


def test_the_network_that_is_matched_to_is_matched_to_none(novel):
    assert list(novel["matched_to"]) == ["cnn", ""]
    assert novel["overshoot"].isna().to_list() == [False, True]


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([0.24, 0.25, 0.26], "not comparable: 1 of 3 runs stuck at chance"),
        ([0.34, 0.35, 0.36], "missed: higher by 0.10; 1 of 3 runs stuck at chance"),
        ([0.25, 0.25, 89.0], "not comparable: 1 of 3 runs stuck at chance"),
    ],
)
def test_a_cell_with_a_stuck_run_reproduces_nothing(make_plan, write_run, results, errors, verdict):
    plan = make_plan(FULL)
    for run, error in zip(plan.runs, errors, strict=True):
        write_run(run, error=error, stuck_at_chance=run.seed == 2)
    row = paper_table("sabour-table1", plan, collect(plan, results)).iloc[0]
    assert row["stuck"] == 1
    assert row["verdict"] == verdict


def test_published_values_without_a_network_of_ours_follow_our_rows(make_plan, results):
    plan = make_plan(FULL)
    table = paper_table("sabour-table1", plan, collect(plan, results))
    alone = table.iloc[1:]
    assert set(alone["verdict"]) == {"no network of ours"}
    assert set(alone["data"]) == {"mnist"}
    (row,) = (row for row in alone.itertuples() if "homogeneous vector capsules" in row.method)
    assert (row.published, row.planned, row.n) == ("0.17", 0, 0)
    assert "(B20)" in row.method
    assert alone[["mean", "difference", "parameters", "seconds"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("data", "table", "words"),
    [
        ("{name: digits}", "sabour-table1", []),
        ("{name: toynorb}", "hinton-table1", []),
        ("{name: smallnorb}", "hinton-table1", ["Heinsen", "VB routing", "jitter and clutter"]),
        ("{name: smallnorb, options: {view: azimuth}}", "hinton-table2", []),
        ("{name: affnist}", "affnist", ["VB routing", "Aff-CapsNet"]),
        ("{name: cifar10}", "natural-images", ["inverted dot-product", "DeepCaps, 7 networks"]),
    ],
)
def test_they_belong_to_the_table_and_the_data_set_that_the_study_fills(make_plan, results, data, table, words):
    plan = make_plan(FULL.replace("{name: mnist}", data))
    methods = list(paper_table(table, plan, collect(plan, results))["method"])[1:]
    assert [word for word in words if not any(word in method for method in methods)] == []
    assert bool(methods) == bool(words)


def test_a_control_whose_test_is_familiar_has_no_published_familiar_value(make_plan, results):
    control = "{name: affnist, options: {train: affine}}"
    plan = make_plan(FULL.replace("{name: mnist}", control))
    table = ours_of(paper_table("affnist", plan, collect(plan, results)))
    assert table["published_familiar"].isna().all()
    novel = make_plan(FULL.replace("{name: mnist}", "{name: affnist}"))
    assert list(ours_of(paper_table("affnist", novel, collect(novel, results)))["published_familiar"]) == [0.77]


def test_later_networks_are_compared_with_their_own_papers(make_plan, results):
    plan = make_plan(FULL + "  deepcaps: {model: deepcaps}\n  efficient: {model: efficient_capsnet}\n")
    table = ours_of(paper_table("sabour-table1", plan, collect(plan, results)))
    assert list(table["published"]) == ["0.25 ± 0.005", "accuracy 99.72", "0.26"]
    plan = make_plan("""\
name: norb
seeds: [0]
experiments: {norb: {data: {name: smallnorb}}}
variants: {efficient: {model: efficient_capsnet}}
""")
    table = ours_of(paper_table("hinton-table1", plan, collect(plan, results)))
    assert list(table["published"]) == ["2.54 [from memory]"]
