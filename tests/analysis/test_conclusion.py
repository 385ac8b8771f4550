"""The sentences of a conclusion: no stronger than their intervals, in the order of the study."""

import re

import numpy as np
import pytest
from studies import FULL

from capsbench.analysis.collect import collect
from capsbench.analysis.conclusion import MOST_ITEMS, MOST_OPEN, ONE_BY_ONE, conclusion, findings, scope
from capsbench.analysis.contrasts import compare, not_in_intervals

FIVE = """\
name: five
seeds: [0, 1, 2, 3, 4]
training: {epochs: 2}
contrasts:
  large:
    - {a: three, b: one, name: three against one}
    - {a: two, b: one, name: two against one}
  small:
    - {a: three, b: two, name: three against two}
experiments:
  digits: {data: {name: digits, validation_images: 100}}
variants:
  one: {model: capsnet, options: {routing: {name: dynamic, iterations: 1}}}
  two: {model: capsnet, options: {routing: {name: dynamic, iterations: 2}}}
  three: {model: capsnet, options: {routing: {name: dynamic, iterations: 3}}}
"""
CLAIM = """\
name: claim
seeds: [0, 1, 2, 3, 4]
experiments:
  mnist: {data: {name: mnist}}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
"""
AS_CLAIMED = {
    "capsnet_iterations1": [0.29, 0.30, 0.28, 0.29, 0.29],
    "capsnet_iterations3": [0.25, 0.25, 0.24, 0.25, 0.26],
}
DIRECTIONS = re.compile(r"\b(lower|higher|better|worse)\b")
STEADY = [5.0, 5.1, 5.2, 5.0, 5.1]


@pytest.fixture
def ended(make_plan, write_run, results):
    """A study and its runs after they have ended: variant -> what each seed ended with, an error or a status."""

    def end_all(text: str = FIVE, **ends: list[float | str]) -> tuple[object, object]:
        plan = make_plan(text)
        for run in plan.runs:
            end = ends.get(run.variant.replace("-", "_"), ["missing"] * 9)[run.seed]
            if isinstance(end, float):
                write_run(run, error=end)
            elif end != "missing":
                write_run(run, end)
        return plan, collect(plan, results)

    return end_all


@pytest.fixture
def concluded(ended):
    """What is said of them, and the table of contrasts that it rests on."""

    def conclude(text: str = FIVE, **ends: list[float | str]) -> tuple[list[str], object]:
        plan, runs = ended(text, **ends)
        return conclusion(plan, runs), compare(plan.contrasts, runs)

    return conclude


def many() -> tuple[list[str], str]:
    """More contrasts with `one` than are told one by one, in one family: the variants and the study."""
    names = [f"v{k}" for k in range(ONE_BY_ONE + 1)]
    text = FIVE.split("  large:")[0] + "  all:\n" + "".join(f"    - {{a: {name}, b: one}}\n" for name in names)
    text += "experiments:" + FIVE.split("experiments:")[1]
    text += "".join(f"  {n}: {{model: capsnet, options: {{conv_channels: {32 + k}}}}}\n" for k, n in enumerate(names))
    return names, text


def sentences_on(said: list[str], name: str) -> list[str]:
    """Return the items that name a contrast."""
    parts = [part for sentence in said for part in re.split(r"; (?=\w+ against)|: (?=\w+ against)", sentence)]
    return [part for part in parts if part.startswith(name)]


@pytest.mark.parametrize("seed", range(5))
def test_a_contrast_whose_interval_holds_zero_never_has_a_direction(concluded, seed):
    draw = np.random.default_rng(seed)
    ends = {name: [float(e) for e in draw.normal(5, 1.2, 5).clip(0.5, 9)] for name in ("one", "two", "three")}
    said, table = concluded(**ends)
    unshown = table[(table["low"] <= 0) & (table["high"] >= 0)]
    assert len(unshown)
    for row in unshown.itertuples():
        (item,) = sentences_on(said, row.contrast)
        assert not DIRECTIONS.search(item), item
        assert re.search(r"between [−+]?[0-9.]+ and [−+]?[0-9.]+ points", item), item


def test_what_was_shown_comes_first_with_its_interval(concluded):
    said, table = concluded(
        one=STEADY, two=[e + 0.4 for e in [5.6, 4.3, 5.7, 4.4, 5.0]], three=[4.0, 4.2, 4.1, 4.1, 4.0]
    )
    assert "was shown in 2 of 3 contrasts" in said[0]
    assert said[0].index("three against one") < said[0].index("three against two")
    row = table.set_index("contrast").loc["three against one"]
    (item,) = sentences_on(said[:1], "three against one")
    assert f"lower by {-row.high:.2f} to {-row.low:.2f} points" in item
    assert "No difference was shown in 1 of 3" in said[1]
    assert "two against one" in said[1]


def test_a_difference_that_falls_to_the_correction_has_no_direction(concluded):
    two = [5.0, 6.7, 6.0, 6.2, 5.5]  # p = 0.047 alone, 0.09 in a family of two
    said, table = concluded(one=STEADY, two=two, three=[5.4, 4.7, 5.3, 5.2, 4.9])
    row = table.set_index("contrast").loc["two against one"]
    assert (row.low > 0, row.p < 0.05, row.p_holm > 0.05) == (True, True, True)
    (item,) = sentences_on(said, "two against one")
    assert "Holm's correction for 2 contrasts" in item
    assert not DIRECTIONS.search(item)
    assert not any("was shown in" in sentence and not sentence.startswith(("No ", "Neither ")) for sentence in said)


def test_what_is_the_same_within_a_tenth_is_neither_a_difference_nor_open(concluded):
    said, table = concluded(one=STEADY, two=[5.1, 5.0, 5.2, 5.1, 5.0], three=[5.4, 4.7, 6.3, 5.2, 3.9])
    (sentence,) = [sentence for sentence in said if "the same test error, within a tenth, in 1 of 3" in sentence]
    (item,) = sentences_on([sentence], "two against one")
    row = table.set_index("contrast").loc["two against one"]
    assert f"the same within 0.51 points: between −{-row.low:.2f} and +{row.high:.2f} points (five seeds" in item
    assert not DIRECTIONS.search(item)
    assert sentences_on(said, "two against one") == [item]
    assert any(other.startswith("Neither a difference nor the same error was shown in 2 of 3") for other in said)


def test_the_order_is_that_of_the_study_and_not_that_of_the_results(concluded):
    text = FIVE.replace("- {a: three, b: one, name: three against one}\n    - {a: two", "- {a: two")
    text = text.replace("three against two}", "three against two}\n    - {a: three, b: one, name: three against one}")
    said, _ = concluded(
        text, one=STEADY, two=[e + 0.5 for e in [5.0, 5.1, 5.2, 5.0, 5.2]], three=[1.0, 1.2, 1.1, 1.1, 1.0]
    )
    places = [said[0].index(name) for name in ("two against one", "three against two", "three against one")]
    assert places == sorted(places)


def test_with_few_seeds_nothing_is_said(concluded):
    rest = ["missing"] * 3
    said, _ = concluded(one=[5.0, 5.1, *rest], two=[1.0, 1.1, *rest], three=[9.0, 9.1, *rest])
    assert said[0].startswith("Nothing can be said yet")
    assert not DIRECTIONS.search(" ".join(said))


def test_seeds_that_were_dropped_are_named(concluded):
    said, _ = concluded(one=STEADY, two=[5.3, 4.6, 5.4, "diverged", 5.0], three=[4.0, 4.2, 4.1, "diverged", 4.0])
    for name in ("three against one", "two against one"):
        (item,) = sentences_on(said, name)
        assert "diverged in 1 seed" in item


def test_runs_at_chance_are_named_beside_the_difference(make_plan, write_run, results):
    plan = make_plan(FIVE)
    for run in plan.runs:
        stuck = run.variant == "three" and run.seed < 2
        write_run(run, error=90.0 - run.seed / 10 if stuck else STEADY[run.seed], stuck_at_chance=stuck, diagnostics=[])
    said = conclusion(plan, collect(plan, results))
    (sentence,) = [sentence for sentence in said if "at chance" in sentence]
    assert sentence.startswith("In 2 of 3 contrasts a variant stayed at chance in some seeds")
    assert "nothing of networks that learn" in sentence
    (item,) = sentences_on([sentence], "three against one")
    assert "three at chance in 2 of 5 seeds" in item
    assert sentences_on(said, "three against one") == [item]  # neither shown nor not shown
    assert not DIRECTIONS.search(" ".join(said))
    assert any("the same test error, within a tenth, in 1 of 3" in other for other in said)


def test_a_heading_says_within_what_the_correction_is(concluded):
    ends = {"one": STEADY, "two": [e + 0.4 for e in [5.3, 4.6, 5.4, 4.7, 5.0]], "three": [4.0, 4.2, 4.1, 4.1, 4.0]}
    said, _ = concluded(**ends)
    assert "corrected (Holm) within each of 2 families (1 of one contrast is not corrected)" in said[0]
    alone = FIVE.replace("    - {a: two, b: one, name: two against one}\n", "")
    said, _ = concluded(alone, **ends)
    assert "was shown in 2 of 2 contrasts, not corrected" in said[0]
    together = FIVE.replace("  small:\n", "")
    said, _ = concluded(together, **ends)
    assert "corrected (Holm) within their family" in said[0]
    assert "not corrected" not in said[0]


def test_the_scope_names_data_lengths_seeds_and_what_intervals_leave_out(make_plan, write_run, results):
    text = FIVE.replace(
        "experiments:\n", "experiments:\n  mnist: {data: {name: mnist, train_images: 5000, allow_unofficial: true}}\n"
    )
    plan = make_plan(text.replace("{epochs: 2}", "{epochs: 8}"))
    for run in plan.runs:
        write_run(run, error=5.0, unofficial=("a file: md5 1, not 2",) if run.experiment == "mnist" else ())
    said = scope(plan, collect(plan, results))
    assert "MNIST (5,000 training images, 8 epochs, not the official files)" in said
    assert re.search(r"handwritten digits of scikit-learn \([\d,]+ training images, 8 epochs\)", said)
    assert "five seeds" in said
    assert "neither the choice of the training images nor that of the test images is in them" in said


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        (("fixed", "fixed"), "neither the choice of the training images nor that of the test images is in them"),
        (("per_seed", "per_seed"), "the draw of the training images is in them, the choice of the test images is not"),
        (("per_seed", "fixed"), "the choice of the test images is not in them, and the draw of the training images "
         "only for MNIST"),
    ],
)  # fmt: skip
def test_what_intervals_leave_out_follows_from_how_training_images_are_drawn(make_plan, splits, said):
    cuts = [f"train_images: 500, split: {split}" for split in splits]
    experiments = f"  mnist: {{data: {{name: mnist, {cuts[0]}}}}}\n  digits: {{data: {{name: digits, {cuts[1]}}}}}\n"
    plan = make_plan(f"name: drawn\nseeds: [0]\nexperiments:\n{experiments}variants: {{capsnet: {{model: capsnet}}}}\n")
    assert not_in_intervals(plan) == said
    assert ("is in them, the" in not_in_intervals(plan, {"digits"})) == (splits[1] == "per_seed")


def test_names_have_the_titles_of_data_sets(concluded):
    text = FIVE.replace("experiments:\n", "experiments:\n  smallnorb: {data: {name: smallnorb}}\n")
    said, _ = concluded(text, one=STEADY, two=STEADY, three=[e + 0.2 + k / 50 for k, e in enumerate(STEADY)])
    assert "(smallNORB)" in " ".join(said)
    assert "(smallnorb)" not in " ".join(said)


def test_a_sentence_lists_a_few_and_counts_the_rest(concluded):
    named = "".join(f"\n    - {{a: v{k}, b: one, name: v{k} against one}}" for k in range(5))
    more = "".join(f"  v{k}: {{model: capsnet, options: {{conv_channels: {32 + k}}}}}\n" for k in range(5))
    text = (
        FIVE.split("contrasts:")[0] + "contrasts:\n  many:" + named + "\nexperiments:" + FIVE.split("experiments:")[1]
    )
    ends = {f"v{k}": [e - 1 - k / 10 - s / 100 for s, e in enumerate(STEADY)] for k in range(5)}
    said, _ = concluded(text + more, one=STEADY, **ends)
    assert "was shown in 5 of 5 contrasts" in said[0]
    assert said[0].count(" against one") == MOST_ITEMS
    assert "2 more below" in said[0]


def test_what_cannot_be_compared_with_papers_is_said_with_the_reason(concluded):
    said, _ = concluded(one=STEADY, two=STEADY, three=STEADY)
    last = said[-1]
    assert "can be compared" in last
    assert "digits is not mnist" in last
    assert not DIRECTIONS.search(last)


def test_a_reproduced_value_is_said_to_be_the_same(concluded):
    text = FULL.replace("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3, 4]")
    said, _ = concluded(text, capsnet=[0.25, 0.24, 0.25, 0.26, 0.25])
    assert any("published value" in sentence and sentence.endswith(": the same.") for sentence in said)
    said, _ = concluded(text, capsnet=[0.65, 0.64, 0.65, 0.66, 0.65])
    assert any(re.search(r": worse by at least 0\.3\d", sentence) for sentence in said)


def test_a_claim_is_quoted_with_its_verdict(concluded):
    ends = dict(AS_CLAIMED)
    said, _ = concluded(CLAIM, **ends)
    (sentence,) = [sentence for sentence in said if "claims" in sentence]
    assert re.search(r"supported in its direction: “[^”]*three routing iterations", sentence)
    ends["capsnet_iterations3"] = [0.35, 0.37, 0.36, 0.36, 0.35]
    said, _ = concluded(CLAIM, **ends)
    (sentence,) = [sentence for sentence in said if "claims" in sentence]
    assert "contradicted in its direction: “" in sentence
    assert "supported" not in sentence
    said, _ = concluded(CLAIM.replace("experiments:", "tables: [contrasts]\nexperiments:"), **ends)
    assert not [sentence for sentence in said if "claims" in sentence]


def test_tests_of_a_claim_on_several_data_sets_are_no_claims_of_their_own(concluded):
    line = "  mnist: {data: {name: mnist}, training: {batch_size: 64}}"
    twice = CLAIM.replace("  mnist: {data: {name: mnist}}", f"{line}\n{line.replace('  mnist', '  again')}")
    ends = dict(AS_CLAIMED)
    said, _ = concluded(twice, **ends)
    (sentence,) = [sentence for sentence in said if "came out as claimed" in sentence]
    assert "2 of 2 tests of one claim came out as claimed" in sentence


def test_claims_come_first_where_there_are_more_of_them_than_contrasts(concluded):
    line = "  mnist: {data: {name: mnist}, training: {batch_size: 64}}"
    twice = CLAIM.replace("  mnist: {data: {name: mnist}}", f"{line}\n{line.replace('  mnist', '  again')}")
    ends = dict(AS_CLAIMED)
    pair = "{a: capsnet-iterations3, b: capsnet-iterations1, experiment: %s, name: more}"
    for compared, first in ((["mnist"], "Tested at"), (["mnist", "again"], "A difference")):
        declared = "".join(f"    - {pair % name}\n" for name in compared)
        said, _ = concluded(twice.replace("experiments:", f"contrasts:\n  own:\n{declared}experiments:"), **ends)
        assert said[0].startswith(first)
        assert said[1].startswith({"Tested at": "A difference", "A difference": "Tested at"}[first])


def test_the_page_lists_all_decided_claims(ended):
    ends = dict(AS_CLAIMED)
    data = "".join(f"  m{k}: {{data: {{name: mnist}}, training: {{batch_size: {32 + k}}}}}\n" for k in range(5))
    plan, runs = ended(CLAIM.replace("  mnist: {data: {name: mnist}}\n", data), **ends)
    (found,) = [found for found in findings(plan, runs) if "came out as claimed" in found.heading]
    assert len(found.items) == MOST_ITEMS and len(found.all_items) == 5


def test_nothing_is_concluded_before_anything_has_run(concluded):
    said, _ = concluded()
    assert said[0].startswith("Nothing can be said yet")
    assert not DIRECTIONS.search(" ".join(said))


def test_many_contrasts_are_told_by_family_with_what_came_out_and_how_far(concluded):
    names = [f"v{k}" for k in range(ONE_BY_ONE)]
    families = {"far": names[:8], "near": names[8:]}
    declared = "".join(
        f"  {family}:\n" + "".join(f"    - {{a: {name}, b: one}}\n" for name in own) for family, own in families.items()
    )
    declared = declared.replace("b: one}", "b: one, post_hoc: true}", 9)  # all of the first family, one of the second
    text = FIVE.split("  large:")[0] + declared + "  once:\n    - {a: two, b: one}\n    - {a: one, b: three}\n"
    text += "experiments:" + FIVE.split("experiments:")[1]
    text += "".join(f"  {n}: {{model: capsnet, options: {{conv_channels: {32 + k}}}}}\n" for k, n in enumerate(names))
    steady = [5.0, 5.1, 5.2, 5.0, 5.1]
    ends = {name: [e + 1 + k / 10 + s / 100 for s, e in enumerate(steady)] for k, name in enumerate(families["far"])}
    ends |= {name: [e + 0.01 * (-1) ** s for s, e in enumerate(steady)] for name in families["near"]}
    wide = [3.0, 7.0, 4.0, 8.0, 3.5]
    said, table = concluded(text, one=steady, two=steady, three=wide, **ends)
    count = ONE_BY_ONE + 2
    assert said[0].startswith(
        f"{count} contrasts: a difference in test error was shown in 8, the same error within a tenth in 7, "
        "identical errors in 1, undecided in 1; by family (higher: the first errs more; means in points): "
    )
    means = table.set_index("a")["mean"]
    assert f"far (post hoc): higher in 8 (+{means['v0']:.2f} to +{means['v7']:.2f}); near (1" in said[0]
    assert "near (1 of 7 post hoc): the same within a tenth in 7" in said[0]
    assert "once: identical in 1, undecided in 1" in said[0]
    assert said[1] == (
        "The contrasts are corrected (Holm) within each of 3 families (1 of one contrast is not corrected); 9 are post "
        "hoc: declared when the errors of both were known."
    )


def test_behind_a_family_the_networks_stand_by_what_came_out(ended):
    """On the page alone: a direction, and with it a number, for what was shown and for nothing else."""
    names, text = many()
    ends = {name: [6.0, 6.2, 6.1, 6.0, 6.1] for name in names}
    ends |= {"one": STEADY, "v1": [2.0, 9.0, 4.0, 8.0, 3.5], "v2": [4.0, 4.2, 4.1, 4.0, 4.1]}
    plan, runs = ended(text, **ends)
    families = findings(plan, runs)[0]
    assert len(families.items) == len(families.behind) == 1
    digits = "handwritten digits of scikit-learn"
    assert families.behind[0].texts()[:4] == [
        f"v0 against one: {digits} +1.00",
        f"v1 against one: {digits} undecided",
        f"v2 against one: {digits} −1.00",
        f"v3 against one: {digits} +1.00",
    ]
    assert "v0 against one" not in str(families)
    assert families.unfolded == 1
    plan, runs = ended(text, **(ends | {"v0": ["failed"] * 5}))
    assert findings(plan, runs)[0].behind[0].texts()[0] == f"v0 against one: {digits} too few seeds"


def test_the_page_opens_families_as_long_as_they_are_few_lines(ended):
    names, text = many()
    head, body = text.split("experiments:", 1)
    lines = [line for line in head.splitlines(keepends=True) if line.startswith("    - ")]
    start = head.split("  all:")[0]
    for sizes, unfolded in (([8, 8], 2), ([8, 4, 4], 3), ([16], 1)):
        assert sum(sizes) == len(lines) <= MOST_OPEN
        cut = iter(lines)
        families = "".join(f"  f{k}:\n" + "".join(next(cut) for _ in range(size)) for k, size in enumerate(sizes))
        plan, runs = ended(f"{start}{families}experiments:{body}", **dict.fromkeys(["one", *names], STEADY))
        assert findings(plan, runs)[0].unfolded == unfolded
    more = f"{start}  f0:\n{lines[0]}  f1:\n{''.join(lines[1:])}  f2:\n"
    more += "".join(f"    - {{a: {name}, b: two}}\n" for name in names)
    plan, runs = ended(f"{more}experiments:{body}", **dict.fromkeys(["one", "two", *names], STEADY))
    assert findings(plan, runs)[0].unfolded == 2


def test_a_study_with_questions_answers_them_first(ended):
    plan, runs = ended(
        FIVE + "questions:\n  Do iterations help?: {three: [three against one], two: [two against one]}\n",
        one=STEADY, two=[5.1, 5.0, 5.2, 5.1, 5.0], three=[4.0, 4.2, 4.1, 4.1, 4.0],
    )  # fmt: skip
    asked, counted, *_ = findings(plan, runs)
    digits = "handwritten digits of scikit-learn"
    assert asked.items == (f"Do iterations help? three: {digits} −1.00; two: {digits} ≈ 0.00",)
    assert str(counted) == (
        "3 contrasts in all: a difference in test error was shown in 2, the same error within a tenth in 1: "
        "2 families below."
    )
    assert len(counted.all_items) == len(counted.behind) == 2


def test_what_the_correction_takes_away_is_counted(concluded):
    names, text = many()
    two = [5.0, 6.7, 6.0, 6.2, 5.5]  # p = 0.047 alone
    said, _ = concluded(text, one=STEADY, **dict.fromkeys(names, two))
    assert said[0].startswith("16 contrasts: a difference in test error was shown in none, undecided in 16;")
    assert "which leaves 16 undecided though their interval leaves out zero" in said[1]
