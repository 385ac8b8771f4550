"""What the papers claim, held against hand-made runs with known answers."""

import pytest
from studies import FULL, NOVEL

from capsbench.analysis.claims import check_claims
from capsbench.analysis.collect import collect

ITERATIONS = FULL.replace("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3, 4]").replace(
    "{model: capsnet}", "{model: capsnet, options: {decoder: %s}, grid: {routing.iterations: [3, 1]}}"
)
WITH, WITHOUT = ITERATIONS % "fully_connected", ITERATIONS % "null"


@pytest.fixture
def checked(make_plan, write_run, results):
    """The result of a claim on a study, from the differences of its first two variants by seed; None: no run."""

    def check(claim: str, text: str, differences, **record):
        plan = make_plan(text)
        for run in plan.runs:
            difference = differences[run.seed]
            if difference is None and run.variant == plan.runs[0].variant:
                write_run(run, "diverged")
            else:
                ours = difference if run.variant == plan.runs[0].variant else 0.0
                write_run(run, error=0.5 + run.seed / 100 + ours, **record)
        (found,) = (result for result in check_claims(plan, collect(plan, results)) if result.claim.id == claim)
        return found

    return check


LOWER, SAME = "S17-iterations-mnist", "S17-iterations-mnist-no-decoder"


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([-0.04, -0.05, -0.03, -0.04, -0.05], "supported"),
        ([0.04, 0.05, 0.03, 0.04, 0.05], "contradicted"),
        ([-0.04, 0.05, -0.03, 0.04, -0.01], "undecided"),
        ([-0.04, -0.05, -0.03, -0.04, None], "supported"),  # 80 % of the seeds
        ([-0.04, -0.05, -0.03, None, None], "undecided"),
        ([0.0, 0.0, 0.0, 0.0, 0.0], "undecided"),
    ],
)
def test_a_claim_of_less_error_rests_on_the_interval_of_the_paired_difference(checked, differences, verdict):
    found = checked(LOWER, WITH, differences)
    assert found.verdict == verdict
    assert (found.experiment, found.a, found.b) == ("mnist", "capsnet-iterations3", "capsnet-iterations1")
    assert found.found["n"] == sum(d is not None for d in differences)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.01, -0.01, 0.0, 0.01, -0.01], "supported"),  # the margin is 0.05, five images of 10,000
        ([0.0, 0.0, 0.0, 0.0, 0.0], "supported"),
        ([0.05, 0.06, 0.04, 0.05, 0.05], "undecided"),
        ([0.20, 0.21, 0.19, 0.20, 0.20], "contradicted"),
        ([0.10, -0.10, 0.05, -0.05, 0.0], "undecided"),
    ],
)
def test_a_claim_of_no_difference_rests_on_a_margin(checked, differences, verdict):
    assert checked(SAME, WITHOUT, differences).verdict == verdict


def test_a_claim_says_which_seeds_are_missing(checked):
    found = checked(LOWER, WITH, [-0.04, -0.05, -0.03, None, None])
    assert found.reason.startswith("3 of 5 seeds have both")
    assert "diverged" in found.reason


def test_nothing_is_said_for_or_against_a_claim_by_other_networks(checked):
    short = WITH.replace("{decoder", "{conv_channels: 8, decoder") + "training: {epochs: 2}\n"
    found = checked(LOWER, short, [-0.04, -0.05, -0.03, -0.04, -0.05])
    assert found.verdict == "not comparable"
    assert "938 steps, not 300,000 or more" in found.reason
    assert found.reason.count("conv_channels 8, not 256") == 1  # said once, not once per side
    assert found.found["high"] < 0  # the contrast is there as ours


def test_nothing_is_said_on_files_that_are_not_official(checked):
    found = checked(LOWER, WITH, [-0.04, -0.05, -0.03, -0.04, -0.05], unofficial=("a: md5 1, not 2",))
    assert (found.verdict, found.reason) == ("not comparable", "not the official files")


def test_nothing_is_decided_by_runs_at_chance(checked):
    found = checked(LOWER, WITH, [-0.04, -0.05, -0.03, -0.04, -0.05], stuck_at_chance=True)
    assert found.verdict == "undecided"
    assert "at chance" in found.reason


def test_a_claim_without_its_networks_or_its_runs_is_not_tested(make_plan, results):
    plan = make_plan(WITH)
    found = {result.claim.id: result for result in check_claims(plan, collect(plan, results))}
    assert {result.verdict for result in found.values()} == {"not tested"}
    assert found[LOWER].reason == "not run"
    assert found["S17-decoder-3"].reason == "one of its networks is not here"
    assert found["H18-pose"].reason == "its networks are not here"
    assert "attack" in found["H18-fgsm-0.1"].reason
    assert len(found) == 27


def test_networks_at_novel_views_are_compared_where_their_familiar_errors_match(make_plan, write_run, results):
    plan = make_plan(NOVEL)
    for run in plan.runs:
        ours = run.variant == "capsules"
        write_run(run, error=(13.0 if ours else 20.0) + run.seed * (2 if ours else 1) / 10, familiar=3.6)
    (found,) = (r for r in check_claims(plan, collect(plan, results)) if r.claim.id == "H18-azimuth")
    assert (found.verdict, found.a, found.b) == ("supported", "capsules", "cnn")
    for run in plan.runs[:1]:
        write_run(run, error=13.0, familiar=3.0)
    (found,) = (r for r in check_claims(plan, collect(plan, results)) if r.claim.id == "H18-azimuth")
    assert found.verdict == "not comparable"
    assert "not matched" in found.reason


def test_a_network_without_a_value_is_found_by_its_options(make_plan, write_run, results):
    plan = make_plan(
        FULL.replace("{name: mnist}", "{name: affnist}").replace("  capsnet: {model: capsnet}\n", "")
        + "  cnn_matched: {model: cnn_matched}\n"
        + "  dynamic: {model: capsnet, training: {match: cnn_matched}}\n"
        + "  uniform: {model: capsnet, options: {routing: uniform}, training: {match: cnn_matched}}\n"
    )
    for run in plan.runs:
        write_run(run, error=21.0 + run.seed / 10 + (run.variant == "uniform") * run.seed / 100, familiar=0.7)
    (found,) = (r for r in check_claims(plan, collect(plan, results)) if r.claim.id == "G20-routing")
    assert (found.a, found.b, found.verdict) == ("dynamic", "uniform", "undecided")
    assert "no margin" in found.reason  # the claim has no published value on either side
