"""Tables of a user's own."""

import re
from pathlib import Path

import pytest
import yaml
from studies import text_of

from capsbench.analysis.table_names import table_names
from capsbench.errors import InputError

TWO = """\
name: two
seeds: [0, 1, 2]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits}}
  copy: {data: {name: mnist}, variants: [caps]}
variants:
  caps: {model: capsnet, label: CapsNet, grid: {routing.iterations: [1, 3]}}
  cnn: {model: cnn_matched, label: CNN}
"""
DOCS = Path(__file__).parents[3] / "docs/tables.md"


@pytest.fixture
def own(make_plan, write_run, made):
    """An own table of a study whose cells have the errors 1, 2, 3, .., in the order of the study."""

    def make(declared: str):
        plan = make_plan(f"{TWO}tables:\n  - {declared}\n")
        cells = list(dict.fromkeys((run.experiment, run.variant) for run in plan.runs))
        for run in plan.runs:
            error = 1.0 + cells.index((run.experiment, run.variant)) + run.seed / 10
            write_run(run, error=error, familiar=10 * error)
        return made("mine", plan)

    return make


def test_experiments_as_columns_give_a_row_per_variant(own):
    table = own('{name: mine, title: My table, rows: [cnn, "caps-*"], columns: [copy, digits]}')
    assert table.title == "My table"
    assert list(text_of(table).columns) == ["network", "MNIST", "handwritten digits of scikit-learn"]
    assert text_of(table).to_numpy().tolist() == [
        ["CNN", "-", "3.10 ± 0.10"],
        ["CapsNet, iterations 1", "4.10 ± 0.10", "1.10 ± 0.10"],
        ["CapsNet, iterations 3", "5.10 ± 0.10", "2.10 ± 0.10"],
    ]


def test_fields_as_columns_give_a_row_per_variant_and_experiment(own):
    table = own("{name: mine, columns: [digits, error, interval, n, parameters]}")
    assert text_of(table).to_numpy().tolist()[2] == ["CNN", "3.10 ± 0.10", "[2.85, 3.35]", "3 of 3", "1,234,567"]
    assert len(text_of(table)) == 3
    assert list(text_of(table).columns) == ["network", "error (%)", "95 % interval", "n", "parameters"]


def test_the_error_can_be_the_familiar_one(own):
    assert text_of(own("{name: mine, rows: [cnn], columns: [digits], error: familiar}")).iloc[0, 1] == "31.00 ± 1.00"


def test_families_of_contrasts_stand_below(own):
    table = own('{name: mine, rows: [cnn], columns: [digits], contrasts: ["caps: routing.iterations"]}')
    assert table.grids[1].heading == "contrast: CapsNet: routing iterations"
    assert [row.texts[1:3] for row in table.grids[1].rows] == [("2.10 − 1.10", "+1.00"), ("5.10 − 4.10", "+1.00")]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("{name: mine, rows: [capz]}", ["tables.0.rows", "no variant 'capz'", "cnn"]),
        ("{name: mine, columns: [mnst]}", ["tables.0.columns", "'mnst'", "digits"]),
        ("{name: mine, contrasts: [x]}", ["tables.0.contrasts", "no family of contrasts 'x'"]),
        ("{name: cost}", ["tables.0.name", "a table 'cost' already"]),
    ],
)
def test_what_the_study_does_not_have_is_refused_before_anything_runs(make_plan, declared, words):
    with pytest.raises(InputError) as refused:
        make_plan(f"{TWO}tables:\n  - {declared}\n")
    assert [word for word in words if word not in str(refused.value)] == []


def test_keys_that_a_table_does_not_have_are_refused_with_the_study(make_plan):
    with pytest.raises(InputError, match=r"tables\.0\.colums: unknown key \(did you mean 'columns'\?\)"):
        make_plan(f"{TWO}tables:\n  - {{name: mine, colums: [digits]}}\n")


def test_the_example_of_the_docs_is_a_table(make_plan, made):
    (example,) = re.findall(r"```yaml\n(tables:.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    text = TWO.replace("caps:", "capsnet:").replace("[caps]", "[capsnet]")
    plan = make_plan(text + example)
    declared = [table["name"] for table in yaml.safe_load(example)["tables"] if isinstance(table, dict)]
    assert len(declared) == 2
    for name in declared:
        assert name in table_names(plan)
        assert made(name, plan).grids[0].rows
