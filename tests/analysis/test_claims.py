"""What the papers claim, held against hand-made runs with known answers."""

import math

import numpy as np
import pytest
from scipy import stats
from studies import FULL, NOVEL, PAIRS

from capsbench.analysis.claims import check_claims
from capsbench.analysis.collect import collect
from capsbench.analysis.correct_bits import Correct

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


PAIRED = PAIRS.replace("{model: capsnet, grid", "{model: capsnet, options: {decoder: fully_connected}, grid")


@pytest.mark.parametrize(("pairs", "verdict"), [(539, "undecided"), (100_000, "supported")])
def test_the_draw_of_the_test_pairs_belongs_into_the_interval(make_plan, write_run, results, pairs, verdict):
    plan = make_plan(PAIRED)
    for run in plan.runs:
        write_run(run, error=5.2 + run.seed / 10 if run.variant.endswith("3") else 7.5 + run.seed / 5)
    runs = collect(plan, results).assign(test_images=pairs)
    (found,) = (r for r in check_claims(plan, runs) if r.claim.id == "S17-iterations-multimnist")
    assert found.verdict == verdict
    of_test = sum(share * (1 - share) / pairs for share in (0.053, 0.077))  # means over the seeds
    half = stats.t.ppf(0.975, 2) * math.sqrt(0.1**2 / 3 + 100**2 * of_test)
    assert (found.found["low"], found.found["high"]) == pytest.approx((-2.4 - half, -2.4 + half))
    p = 2 * stats.t.sf(2.4 / (half / stats.t.ppf(0.975, 2)), 2)
    assert found.found["p"] == pytest.approx(p)


@pytest.mark.parametrize("known", ["all", "one is missing", "one has another error", "tested on other items"])
def test_where_it_is_known_which_pairs_were_wrong_the_draw_counts_for_their_differences(
    make_plan, write_run, results, known
):
    """600 pairs: both are wrong in 30, the first alone in 6 and the second in 24 to 26, in each seed others."""
    plan, right = make_plan(PAIRED), {}
    for run in plan.runs:
        wrong = np.zeros(600, dtype=bool)
        wrong[:30] = True
        alone = (30, 36) if run.variant.endswith("3") else (36, 60 + run.seed)
        wrong[np.arange(*alone) + 100 * run.seed] = True
        write_run(run, error=100 * wrong.mean())
        right[run.key] = ~wrong
    runs = collect(plan, results).assign(test_images=600)
    kept = dict(right)
    if known == "one is missing":
        del kept[plan.runs[0].key]
    if known == "one has another error":
        kept[plan.runs[0].key] = np.ones(600, dtype=bool)
    mixed = {"multimnist": "a file"} if known == "tested on other items" else {}
    found, bound = (
        next(r for r in check_claims(plan, runs, None, correct) if r.claim.id == "S17-iterations-multimnist").found
        for correct in (Correct(kept, {}, {}, mixed), None)
    )
    if known != "all":
        assert (found["low"], found["high"], found["p"]) == (bound["low"], bound["high"], bound["p"])
        return
    first, second = (np.array([~right[run.key] for run in plan.runs if run.variant.endswith(end)]) for end in "31")
    differences = 100 * (first.astype(float) - second)  # [seeds, pairs]
    by_seed, by_pair = differences.mean(axis=1), differences.mean(axis=0)
    error = math.hypot(by_seed.std(ddof=1) / math.sqrt(3), by_pair.std(ddof=1) / math.sqrt(600))
    half = stats.t.ppf(0.975, 2) * error
    assert (found["low"], found["high"]) == pytest.approx((by_seed.mean() - half, by_seed.mean() + half))
    assert found["p"] == pytest.approx(2 * stats.t.sf(-by_seed.mean() / error, 2))
    assert 0 < 2 * found["sampling_error"] < bound["sampling_error"]


def test_where_all_test_items_are_the_papers_the_interval_is_that_of_the_paired_differences(checked):
    differences = [-0.04, -0.05, -0.03, -0.04, -0.05]
    found = checked(LOWER, WITH, differences).found
    expected = stats.ttest_1samp(differences, 0)
    assert found["p"] == pytest.approx(expected.pvalue)
    assert (found["low"], found["high"]) == pytest.approx(tuple(expected.confidence_interval()))


def test_the_claims_of_a_study_are_corrected_together(make_plan, write_run, results):
    """p = 0.03 for the iterations: shown alone, not beside a claim about the CNN that this study tests as well."""
    iterations = [-0.04, -0.09, -0.01, -0.03, -0.08]
    alone = stats.ttest_1samp(iterations, 0).pvalue
    assert 0.025 < alone < 0.05
    for text, verdict in ((WITH, "supported"), (WITH + "  cnn: {model: cnn_sabour_mnist}\n", "undecided")):
        plan = make_plan(text)
        for run in plan.runs:
            ours = {"capsnet-iterations3": iterations[run.seed], "cnn": iterations[run.seed] + (-1) ** run.seed / 10}
            size = 35_445_522 if run.variant == "cnn" else 8_215_568
            write_run(run, error=0.5 + ours.get(run.variant, 0.0), parameters=size)
        found = {r.claim.id: r for r in check_claims(plan, collect(plan, results)) if r.a is not None}
        assert found[LOWER].verdict == verdict
    assert set(found) == {LOWER, "S17-cnn-mnist"}
    assert found[LOWER].found["high"] < 0
    assert found[LOWER].found["p_holm"] == pytest.approx(2 * alone)
    assert all(word in found[LOWER].reason for word in ("Holm", "2 tests", "p = 0.0"))
    assert found["S17-cnn-mnist"].verdict == "undecided"


@pytest.mark.parametrize(("size", "is_tested"), [(8_000_000, True), (6_000_000, True), (5_000_000, False)])
def test_a_claim_about_sizes_is_not_tested_by_networks_of_other_sizes(make_plan, write_run, results, size, is_tested):
    """The CNN of S17 has 4.3 times the parameters of its CapsNet; here it has 4, 3 and 2.5 times."""
    plan = make_plan(WITH + "  cnn: {model: cnn_sabour_mnist}\n")
    for run in plan.runs:
        of_cnn = run.variant == "cnn"
        write_run(run, error=0.5 + of_cnn * (1 + run.seed / 50), parameters=size if of_cnn else 2_000_000)
    (found,) = (r for r in check_claims(plan, collect(plan, results)) if r.claim.id == "S17-cnn-mnist")
    assert (found.a is not None) == is_tested
    assert found.verdict == ("supported" if is_tested else "not tested")
    if not is_tested:
        assert "has 2.5 times the parameters of" in found.reason
        assert found.reason.endswith("not 4.3 times as many")


def test_a_claim_of_no_difference_has_no_corrected_p(checked):
    assert math.isnan(checked(SAME, WITHOUT, [0.01, -0.01, 0.0, 0.01, -0.01]).found["p_holm"])


def test_a_claim_says_which_seeds_are_missing(checked):
    found = checked(LOWER, WITH, [-0.04, -0.05, -0.03, None, None])
    assert found.reason.startswith("3 of 5 seeds have both")
    assert "diverged" in found.reason


def test_nothing_is_said_for_or_against_a_claim_by_other_networks(checked):
    short = WITH.replace("{decoder", "{conv_channels: 8, decoder") + "training: {epochs: 2}\n"
    found = checked(LOWER, short, [-0.04, -0.05, -0.03, -0.04, -0.05])
    assert (found.verdict, found.here, found.why) == ("not comparable", "as claimed", "")
    assert found.found["p_holm"] < 0.05
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


def test_of_several_pairs_one_that_has_learnt_is_taken(make_plan, write_run, results):
    """From PyTorch's start three iterations stay at chance, and from the authors' one does."""
    second = "\n  authors: {model: capsnet, options: {initialisation: authors}, grid: {routing.iterations: [3, 1]}}\n"
    plan = make_plan(WITH.replace("[capsnet]", "[capsnet, authors]") + second)
    for stuck, a, b in (
        ((), "capsnet-iterations3", "capsnet-iterations1"),  # as likely, and first in the study
        (("capsnet-iterations3",), "authors-iterations3", "authors-iterations1"),
        (("capsnet-iterations3", "authors-iterations1"), "authors-iterations3", "capsnet-iterations1"),
    ):
        for run in plan.runs:
            error = 89.0 if run.variant in stuck else 0.5 + run.seed / 100 - 0.04 * ("iterations3" in run.variant)
            write_run(run, error=error, stuck_at_chance=run.variant in stuck)
        (found,) = (each for each in check_claims(plan, collect(plan, results)) if each.claim.id == LOWER)
        assert (found.a, found.b) == (a, b)


def test_a_claim_without_its_networks_or_its_runs_is_not_tested(make_plan, results):
    plan = make_plan(WITH)
    found = {result.claim.id: result for result in check_claims(plan, collect(plan, results))}
    assert {result.verdict for result in found.values()} == {"not tested"}
    assert found[LOWER].reason == "not run"
    assert found["S17-decoder-3"].reason == "one of its networks is not here"
    assert found["H18-pose"].reason == "its networks are not here"
    assert found["H18-fgsm-0.1"].reason == "no errors under attack"
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


def test_a_claim_at_equal_familiar_error_is_not_tested_by_trainings_of_equal_length(make_plan, write_run, results):
    plan = make_plan(NOVEL.replace(", training: {match: cnn}", ""))
    for run in plan.runs:
        write_run(run, error=13.0 + run.seed, familiar=3.6)
    (found,) = (r for r in check_claims(plan, collect(plan, results)) if r.claim.id == "H18-azimuth")
    assert (found.verdict, found.a) == ("not tested", None)
    assert "was stopped at the familiar error of the other" in found.reason


def test_what_keeps_a_matched_pair_from_the_papers_is_said_once(make_plan, write_run, results):
    plan = make_plan("""\
name: matched
seeds: [0, 1, 2]
training: {steps: 300_000, schedule: absolute}
experiments: {affine: {data: {name: affnist}}}
variants:
  cnn: {model: cnn_matched, options: {matched_to: {name: capsnet, conv_channels: 32}}, training: {steps: 400}}
  capsules: {model: capsnet, options: {conv_channels: 32}, training: {match: cnn}}
""")
    for run in plan.runs:
        write_run(run, error=13.0 + run.seed, familiar=3.6)
    (found,) = (r for r in check_claims(plan, collect(plan, results)) if r.claim.id == "S17-affnist")
    assert found.reason == "conv_channels 32, not 256; cnn: 400 steps, not 300,000 or more"


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
    assert (found.a, found.b) == ("dynamic", "uniform")
    # it has no published value on either side: the margin is a tenth of the second's error, 2.1 points
    assert found.here == "as claimed"
    for run in plan.runs:
        write_run(run, error=21.0 + run.seed / 10 - (run.variant == "dynamic") * (4 + run.seed / 50), familiar=0.7)
    (found,) = (r for r in check_claims(plan, collect(plan, results)) if r.claim.id == "G20-routing")
    assert found.here == "the opposite"


SOLIDS = """
schema: 2
name: solids
seeds: [0, 1, 2, 3, 4]
experiments:
  toynorb: {data: {name: toynorb}}
variants:
  capsules: {model: matrix_capsnet}
  cnn: {model: cnn_hinton_norb}
evaluations: [accuracy, familiar, reconstruction, adversarial]
"""


def test_a_claim_about_an_attack_rests_on_the_errors_under_it(make_plan, write_run, results):
    """FGSM at 0.1: the CNN errs on every image, the capsules on less; at 0.2 nobody was attacked."""
    plan = make_plan(SOLIDS)
    for run in plan.runs:
        write_run(run, error=10.0 + run.seed / 10, parameters=4_200_000 if run.variant == "cnn" else 310_000)
    runs, attacked = collect(plan, results), {}
    for run in plan.runs:
        error = 60.0 + run.seed if run.variant == "capsules" else 90.0 + run.seed / 2
        errors = {"fgsm": [10.0, 99.0, 100.0], "transfer": [10.0, 30.0 + run.seed / 10, 100.0]}
        found = {"images": 200, "eps": [0.0, 0.1, 0.5], "error_by_eps": errors}
        found["fgsm_error_at_each_eps_alone"] = [10.0, error, 80.0 + run.seed]  # as H18 counts it
        attacked[run.key] = {"adversarial": {"status": "ok", **found}}
    found = {result.claim.id: result for result in check_claims(plan, runs, attacked)}
    fgsm = found["H18-fgsm-0.1"]
    assert (fgsm.a, fgsm.b, fgsm.here, fgsm.verdict) == ("capsules", "cnn", "as claimed", "not comparable")
    assert "pixel range" in fgsm.reason
    differences = [60.0 + seed - 90.0 - seed / 2 for seed in range(5)]
    assert fgsm.found["differences"] == pytest.approx(dict(enumerate(differences)))
    shares = [(wrong * 200 + 2) / 204 for wrong in (0.62, 0.91)]  # 200 of the test images were attacked
    of_choice = 100**2 * sum(share * (1 - share) for share in shares) / 204
    half = stats.t.ppf(0.975, 4) * math.sqrt(stats.tvar(differences) / 5 + of_choice)
    assert (fgsm.found["low"], fgsm.found["high"]) == pytest.approx((-29.0 - half, -29.0 + half))
    assert found["H18-fgsm-0.5"].here == "undecided"  # the same on both sides, in every seed
    assert (found["H18-fgsm-0.2"].a, found["H18-fgsm-0.2"].reason) == (None, "no errors under attack")
    assert found["H18-cnn"].found["mean"] == 0.0  # of the test itself
    assert found["H18-transfer"].here == "undecided"  # the choice of 200 images alone is wider than 3 points
    with_all = {key: {"adversarial": {**each["adversarial"], "images": 10**6}} for key, each in attacked.items()}
    found = {result.claim.id: result for result in check_claims(plan, runs, with_all)}
    assert found["H18-transfer"].here == "as claimed"
    assert found["H18-fgsm-0.1"].found["high"] == pytest.approx(
        -29.0 + stats.t.ppf(0.975, 4) * stats.tstd(differences) / math.sqrt(5)
    )


def test_a_run_that_was_not_attacked_is_a_seed_without_a_difference(make_plan, write_run, results):
    plan = make_plan(SOLIDS)
    for run in plan.runs:
        write_run(run, error=10.0 + run.seed / 10)
    errors = {"fgsm": [10.0, 50.0]}
    attacked = {
        run.key: {"adversarial": {"status": "ok", "images": 10**6, "eps": [0.0, 0.1], "error_by_eps": errors}}
        for run in plan.runs if run.seed < 3
    }  # fmt: skip
    found = {r.claim.id: r for r in check_claims(plan, collect(plan, results), attacked)}["H18-fgsm-0.1"]
    assert (found.found["n"], found.here) == (3, "undecided")
    assert "both was not attacked in 2 seeds" in found.why.replace("were", "was")
