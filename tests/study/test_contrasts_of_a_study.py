"""The contrasts that a study declares, and those that its grids make."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from capsbench.errors import InputError
from capsbench.study import Contrast, load_plan
from capsbench.study.files import read_yaml
from capsbench.study.json_schema import json_schema

STUDY = """\
name: small
seeds: [0, 1]
experiments:
  digits: {data: {name: digits}}
  pairs: {data: {name: multidigits}, variants: [caps]}
variants:
  caps: {model: capsnet, grid: {routing.iterations: [1, 3, 5], decoder: [fully_connected, null]}}
  cnn: {model: cnn_matched}
"""
DECODERS = ("fully_connected", "no_decoder")
FLAGS = """\
name: flags
seeds: [0]
experiments: {digits: {data: {name: digits}}}
variants:
  caps: {model: capsnet, grid: {routing.detach: [false, true]}}
  other: {model: capsnet, options: {conv_channels: 8}, grid: {routing.iterations: [2, 3]}}
  one: {model: capsnet, options: {conv_channels: 16}, grid: {routing.iterations: [1, 3]}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.yaml"


@pytest.fixture
def contrasts_of(path):
    """Return the contrasts of a study with something added to it."""

    def load(contrasts: str = "", study: str = STUDY) -> tuple[Contrast, ...]:
        path.write_text(study + (f"contrasts: {contrasts}\n" if contrasts else ""))
        return load_plan(path).contrasts

    return load


def test_each_axis_of_each_grid_is_a_family_by_default(contrasts_of):
    def of(family: str, experiment: str, *pairs: tuple[str, str]) -> list[Contrast]:
        return [Contrast(family, experiment, f"caps-{a}", f"caps-{b}") for a, b in pairs]

    iterations = [
        (f"iterations{n}-{decoder}", f"iterations1-{decoder}") for n in (3, 5) for decoder in DECODERS
    ]  # fmt: skip
    decoders = [(f"iterations{n}-no_decoder", f"iterations{n}-fully_connected") for n in (1, 3, 5)]
    expected = []
    for family, pairs in (("caps: routing.iterations", iterations), ("caps: decoder", decoders)):
        for experiment in ("digits", "pairs"):
            expected += of(family, experiment, *pairs)
    assert sorted(contrasts_of(), key=str) == sorted(expected, key=str)
    assert list(dict.fromkeys(contrast.family for contrast in contrasts_of())) == [
        "caps: routing.iterations", "caps: decoder",
    ]  # fmt: skip


def test_an_empty_mapping_means_no_contrasts(contrasts_of):
    assert contrasts_of("{}") == ()
    assert contrasts_of("null") == contrasts_of() != ()


def test_a_pair_is_compared_in_every_experiment_that_trains_both(contrasts_of):
    pair = "{a: caps-iterations3-no_decoder, b: caps-iterations1-no_decoder"
    first, second = "caps-iterations3-no_decoder", "caps-iterations1-no_decoder"
    assert contrasts_of(f"{{f: [{pair}}}]}}") == (
        Contrast("f", "digits", first, second),
        Contrast("f", "pairs", first, second),
    )
    assert contrasts_of(f"{{f: [{pair}, experiment: pairs, name: three or one}}]}}") == (
        Contrast("f", "pairs", first, second, "three or one"),
    )


def test_a_pair_may_be_declared_late(contrasts_of, path):
    pair = "{a: cnn, b: caps-iterations3-no_decoder, post_hoc: true}"
    assert [contrast.post_hoc for contrast in contrasts_of(f"{{f: [{pair}]}}")] == [True]
    assert "contrasts.f.0.post_hoc" in problem_of(
        path, "{f: [{a: cnn, b: caps-iterations3-no_decoder, post_hoc: later}]}"
    )


def test_a_pair_may_be_of_two_networks(contrasts_of):
    assert contrasts_of("{size: [{a: cnn, b: caps-iterations3-no_decoder}]}") == (
        Contrast("size", "digits", "cnn", "caps-iterations3-no_decoder"),
    )


def test_an_axis_is_compared_with_one_value_and_everything_else_fixed(contrasts_of):
    found = contrasts_of("{f: {axis: routing.iterations, against: 3, experiments: [pairs]}}")
    assert {(c.experiment, c.a, c.b) for c in found} == {
        ("pairs", f"caps-iterations{n}-{decoder}", f"caps-iterations3-{decoder}")
        for n in (1, 5)
        for decoder in DECODERS
    }


def test_an_axis_may_be_compared_with_null(contrasts_of):
    found = contrasts_of("{f: {axis: decoder, against: null, experiments: [digits]}}")
    assert [c.b for c in found] == [f"caps-iterations{n}-no_decoder" for n in (1, 3, 5)]
    assert all(c.a.endswith("fully_connected") for c in found)


def test_true_is_not_one(contrasts_of, path):
    assert [c.a for c in contrasts_of("{f: {axis: routing.detach, against: true}}", FLAGS)] == ["caps-no_detach"]
    assert "1 is not among the values" in problem_of(path, "{f: {axis: routing.detach, against: 1}}", FLAGS)


def test_an_axis_of_several_variants_is_one_family(contrasts_of, path):
    found = contrasts_of("{f: {axis: routing.iterations, against: 3}}", FLAGS)
    assert [(c.family, c.a, c.b) for c in found] == [
        ("f", "other-iterations2", "other-iterations3"), ("f", "one-iterations1", "one-iterations3"),
    ]  # fmt: skip
    found = contrasts_of("{f: {axis: routing.iterations, against: 1, variants: [one]}}", FLAGS)
    assert [(c.a, c.b) for c in found] == [("one-iterations3", "one-iterations1")]
    assert "variant 'other'" in problem_of(path, "{f: {axis: routing.iterations, against: 1}}", FLAGS)


def problem_of(path: Path, contrasts: str, study: str = STUDY) -> str:
    path.write_text(f"{study}contrasts: {contrasts}\n")
    with pytest.raises(InputError) as raised:
        load_plan(path)
    message = str(raised.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("contrasts", "place", "said"),
    [
        ("{f: []}", "contrasts.f: ", "at least one pair"),
        ("{f: }", "contrasts.f: ", "at least one pair"),
        ("{f: 3}", "contrasts.f: ", "a list"),
        ("{f: [3]}", "contrasts.f.0: ", "a mapping"),
        ("{two words: []}", "contrasts.two words: ", "not a name"),
        ("[1]", "contrasts: ", "a mapping"),
        ("{f: [{a: cnn}]}", "contrasts.f.0.b: ", "is missing"),
        ("{f: [{a: cnn, c: caps}]}", "contrasts.f.0.c: ", "unknown key"),
        ("{f: [{a: cnn, b: caps-iteration3-no_decoder}]}", "contrasts.f.0.b: ", "did you mean caps-iterations3"),
        ("{f: [{a: caps, b: cnn}]}", "contrasts.f.0.a: ", "no variant 'caps'"),
        ("{f: [{a: cnn, b: cnn}]}", "contrasts.f.0: ", "itself"),
        ("{f: [{a: cnn, b: caps-iterations1-no_decoder, experiment: pairs}]}", "contrasts.f.0.a: ", "'pairs'"),
        ("{f: [{a: cnn, b: caps-iterations1-no_decoder, experiment: pair}]}", "contrasts.f.0.experiment: ", "pairs"),
        ("{f: [{a: cnn, b: caps-iterations1-no_decoder}, {a: caps-iterations1-no_decoder, b: cnn}]}", "contrasts.f: ",
         "there twice"),
        ("{f: {axs: decoder}}", "contrasts.f.axs: ", "did you mean 'axis'"),
        ("{f: {against: 1}}", "contrasts.f.axis: ", "is missing"),
        ("{f: {axis: routing.iteration}}", "contrasts.f.axis: ", "did you mean routing.iterations"),
        ("{f: {axis: routing.iterations, against: 2}}", "contrasts.f.against: ", "(1, 3, 5)"),
        ("{f: {axis: decoder, variants: [cnn]}}", "contrasts.f.variants: ", "'cnn'"),
        ("{f: {axis: decoder, variants: [cap]}}", "contrasts.f.variants: ", "did you mean caps"),
        ("{f: {axis: decoder, experiments: [digit]}}", "contrasts.f.experiments: ", "did you mean digits"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_its_place(path, contrasts, place, said):
    problem = problem_of(path, contrasts)
    assert problem.startswith(place)
    assert said in problem


def test_an_axis_of_one_value_has_nothing_to_compare(path):
    study = STUDY.replace("[1, 3, 5]", "[3]")
    assert "nothing to compare" in problem_of(path, "{f: {axis: routing.iterations}}", study)


def test_variants_of_no_common_experiment_cannot_be_compared(path):
    study = STUDY.replace("digits: {data: {name: digits}}", "digits: {data: {name: digits}, variants: [cnn]}")
    assert "no experiment trains both" in problem_of(path, "{f: [{a: cnn, b: caps-iterations1-no_decoder}]}", study)


NAMED = """\
contrasts:
  f:
    - {a: cnn, b: caps-iterations1-no_decoder, name: cnn}
    - {a: cnn, b: caps-iterations3-no_decoder, name: three}
"""


@pytest.mark.parametrize(
    ("questions", "place", "said"),
    [
        ("{Is it?: {row: [cnnn]}}", "questions.Is it?.row: ", "no name of a contrast 'cnnn'; did you mean cnn"),
        ("{Is it?: {row: [cnn, three]}}", "questions.Is it?.row: ", "several contrasts of experiment 'digits'"),
        ("{Is it?: {row: []}}", "questions.Is it?.row: ", "at least 1"),
        ("{Is it?: {}}", "questions.Is it?: ", "at least 1"),
        ("{Is it?: [cnn]}", "questions.Is it?: ", "a mapping"),
    ],
)
def test_a_question_is_answered_by_contrasts_that_are_there(path, questions, place, said):
    path.write_text(f'{STUDY}{NAMED}questions: {questions.replace("{Is it?:", """{"Is it?":""")}\n')
    with pytest.raises(InputError) as raised:
        load_plan(path)
    message = str(raised.value).removeprefix(f"{path}: ")
    assert message.startswith(place)
    assert said in message


def test_questions_change_no_run(contrasts_of, path):
    contrasts_of()
    before = [run.digest for run in load_plan(path).runs]
    path.write_text(f'{STUDY}{NAMED}questions: {{"Is it?": {{row: [cnn]}}}}\n')
    assert [run.digest for run in load_plan(path).runs] == before


def test_contrasts_change_no_run(contrasts_of, path):
    contrasts_of()
    before = [run.digest for run in load_plan(path).runs]
    contrasts_of("{f: [{a: cnn, b: caps-iterations1-no_decoder}]}")
    assert [run.digest for run in load_plan(path).runs] == before


@pytest.mark.parametrize(
    ("contrasts", "valid"),
    [
        ("{}", True),
        ("null", True),
        ("{f: [{a: cnn, b: caps}], g: {axis: decoder, against: null}}", True),
        ("{f: []}", False),
        ("{f: [{a: cnn}]}", False),
        ("{f: {axs: decoder}}", False),
        ("{f: 3}", False),
    ],
)
def test_editors_know_the_format(path, contrasts, valid):
    path.write_text(f"{STUDY}contrasts: {contrasts}\n")
    assert Draft202012Validator(json_schema()).is_valid(read_yaml(path)) == valid
