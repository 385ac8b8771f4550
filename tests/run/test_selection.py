import pytest

from capsbench.errors import InputError
from capsbench.run.selection import select, with_needed
from capsbench.study import load_plan

STUDY = """
name: chosen
seeds: [0, 1]
experiments:
  digits: {data: {name: digits}}
  moved: {data: {name: affdigits}, variants: [caps]}
variants:
  caps: {model: capsnet, grid: {routing.iterations: [1, 3]}}
  caps-em: {model: capsnet, options: {routing: em, decoder: null}}
  cnn: {model: cnn_matched}
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return load_plan(path)


def cells(plan, **chosen) -> list[str]:
    return list(dict.fromkeys(f"{run.experiment}/{run.variant}" for run in select(plan, **chosen)))


def test_nothing_chosen_is_everything(plan):
    assert select(plan) == list(plan.runs)


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"experiments": ["moved"]}, ["moved/caps-iterations1", "moved/caps-iterations3"]),
        ({"variants": ["cnn"]}, ["digits/cnn"]),
        ({"variants": ["caps-em", "cnn"]}, ["digits/caps-em", "digits/cnn"]),
        ({"variants": ["caps-iterations3"]}, ["digits/caps-iterations3", "moved/caps-iterations3"]),
        ({"variants": ["*3"], "experiments": ["d*"]}, ["digits/caps-iterations3"]),
    ],
)
def test_runs_are_chosen_by_name_or_pattern(plan, chosen, found):
    assert cells(plan, **chosen) == found


def test_a_variant_stands_for_its_whole_grid_and_for_no_other_of_a_longer_name(plan):
    assert cells(plan, variants=["caps"], experiments=["digits"]) == [
        "digits/caps-iterations1",
        "digits/caps-iterations3",
    ]


def test_a_table_is_the_runs_that_stand_in_it(plan):
    table = next(run.table for run in plan.runs if run.experiment == "moved")
    assert {run.experiment for run in select(plan, tables=[table])} == {"moved"}


@pytest.mark.parametrize(("kind", "wrong", "near"), [("variants", "cn", "cnn"), ("experiments", "move", "moved")])
def test_a_name_that_fits_nothing_is_refused_with_a_suggestion(plan, kind, wrong, near):
    with pytest.raises(InputError, match=f"no {kind[:-1]} '{wrong}'; did you mean {near}?"):
        select(plan, **{kind: [wrong]})


def test_a_choice_of_nothing_is_refused(plan):
    with pytest.raises(InputError, match="no run is of all of these"):
        select(plan, variants=["cnn"], experiments=["moved"])


@pytest.mark.parametrize("names", ["last middle first", "first middle last", "middle first last"])
def test_a_run_needs_all_those_of_a_chain_of_matches(tmp_path, names):
    settings = {"first": "{}", "middle": "{match: first}", "last": "{match: middle}"}
    variants = "".join(f"  {name}: {{model: cnn_matched, training: {settings[name]}}}\n" for name in names.split())
    path = tmp_path / "study.yaml"
    moved = "experiments: {moved: {data: {name: affdigits}}}"
    path.write_text(f"name: chain\nseeds: [0, 1]\n{moved}\nvariants:\n{variants}")
    plan = load_plan(path)
    (last,) = [run for run in plan.runs if run.key == "moved/last/seed1"]
    assert plan.before(last) == ["moved/middle/seed1", "moved/first/seed1"]
    assert [run.key for run in with_needed(plan, [last])] == [f"moved/{name}/seed1" for name in names.split()]
