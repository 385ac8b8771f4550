import pytest
from small_studies import digests, problem_of

MATCHED = """\
name: matched
seeds: [0, 1]
training: {epochs: 2}
experiments:
  moved: {data: {name: affdigits}}
variants:
  caps: {model: capsnet, training: {match: cnn}, grid: {routing.iterations: [1, 3]}}
  cnn: {model: cnn_matched}
"""


def test_a_run_is_matched_to_the_one_of_the_same_seed(plan_of):
    plan = plan_of(study=MATCHED)
    for run in plan.runs:
        if run.variant == "cnn":
            assert (run.matched_key, run.matched_digest) == (None, None)
        else:
            assert run.matched_key == f"moved/cnn/seed{run.seed}"
            assert run.matched_digest == plan.run(run.matched_key).digest


def test_digest_follows_the_run_that_is_matched(plan_of):
    before = digests(plan_of(study=MATCHED))
    of_the_cnn = plan_of("{model: cnn_matched}", "{model: cnn_matched, options: {dropout: 0.1}}", MATCHED)
    assert not set(before) & set(digests(of_the_cnn))
    labelled = plan_of("{model: cnn_matched}", "{model: cnn_matched, label: CNN}", MATCHED)
    assert digests(labelled) == before
    assert len(set(before)) == 6
    never = digests(plan_of("{match: cnn}", "{}", MATCHED))
    assert (before[4:], set(before[:4]) & set(never)) == (never[4:], set())


def test_matches_can_form_a_chain_and_stand_in_a_grid(plan_of):
    chain = MATCHED + "  last: {model: resnet20, grid: {training.match: [caps-iterations1, null]}}\n"
    plan = plan_of(study=chain)
    assert plan.run("moved/last-caps-iterations1/seed0").matched_key == "moved/caps-iterations1/seed0"
    assert plan.run("moved/last-no_match/seed0").matched_key is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("match: cnn}", "match: cn}", ["variants.caps.training.match: no variant", "'cn'", "did you mean cnn"]),
        ("match: cnn}", "match: caps}", ["caps.training.match: no variant", "caps-iterations1, caps-iterations3, cnn"]),
        (
            "{model: cnn_matched}",
            "{model: cnn_matched, training: {match: cnn}}",
            ["variants.cnn.training.match: ", "itself"],
        ),
        ("{epochs: 2}", "{match: cnn}", ["training.match: ", "'cnn' cannot be matched to itself"]),
        (
            "{data: {name: affdigits}}",
            "{data: {name: affdigits}, training: {match: cnn}}",
            ["experiments.moved.training.match: ", "'cnn' cannot be matched to itself"],
        ),
        (
            "{model: cnn_matched}",
            "{model: cnn_matched, training: {match: caps-iterations3}}",
            ["a circle: ", "cnn is matched to caps-iterations3"],
        ),
        ("affdigits", "digits", ["variants.caps.training.match: the test of digits is as familiar"]),
        ("affdigits}", "affdigits, options: {train: affine}}", ["the test of affdigits is as familiar"]),
        (
            "{name: affdigits}",
            "{name: affdigits, validation_images: 9}, training: {early_stopping: 2}",
            ["variants.caps.grid.training: early_stopping and match are two stopping rules"],
        ),
        (
            "{data: {name: affdigits}}",
            "{data: {name: affdigits}, variants: [caps]}\n  other: {data: {name: affdigits}, variants: [cnn]}",
            ["variants.caps.training.match: no variant of this experiment 'cnn'; there are caps-iterations1"],
        ),
        ("name: matched", "name: matched\nevaluations: [accuracy]", ["evaluations: 'familiar' must be among them"]),
        (
            "match: cnn}, grid: {",
            "epochs: 1}, grid: {training.match: [cn], ",
            ["variants.caps.grid.training.match: no variant", "'cn'"],
        ),
    ],
)
def test_what_cannot_be_matched_is_refused_with_its_place(path, old, new, words):
    assert old in MATCHED
    problem = problem_of(path, MATCHED.replace(old, new))
    assert [word for word in words if word not in problem] == []


def test_an_experiment_may_set_a_match_from_which_the_matched_variant_is_excepted(plan_of):
    study = MATCHED.replace("training: {match: cnn}, ", "").replace("{epochs: 2}", "{match: cnn}")
    plan = plan_of(study=study.replace("{model: cnn_matched}", "{model: cnn_matched, training: {match: null}}"))
    assert {run.variant for run in plan.runs if run.matched_key} == {"caps-iterations1", "caps-iterations3"}
