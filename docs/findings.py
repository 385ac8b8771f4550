"""What the committed runs of a study say: its summary, its findings, the rows of one method.

SUMMARY and CONTRASTS are data: which variants stand for which method. Used by docs/generate.py.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scipy import stats

from capsbench.analysis.contrasts import digits_for, interval_of_difference, number
from capsbench.analysis.statistics import holm

FEWEST = 3  # seeds for an interval
SIGNIFICANT = 0.05  # of a p value, adjusted
TITLES = {
    "mnist": "MNIST",
    "multimnist": "MultiMNIST",
    "affnist-generated": "generated affine MNIST",
    "smallnorb": "smallNORB",
}


@dataclass(frozen=True)
class Contrast:
    """Two methods, and the variants that stand for them in each experiment."""

    first: str
    second: str
    variants: Mapping[str, tuple[str, str]]


# study -> rows of its summary: what people call the method, its variant in each experiment
SUMMARY = {
    "cpu": {
        "CapsNet, dynamic routing, 1 iteration": {"mnist": "capsnet-iterations1", "smallnorb": "capsnet-iterations1"},
        "CapsNet, dynamic routing, 3 iterations": {"mnist": "capsnet-iterations3", "smallnorb": "capsnet-iterations3"},
        "CapsNet, EM routing, 2 iterations": {"mnist": "capsnet_em-iterations2", "smallnorb": "capsnet_em-iterations2"},
        "CapsNet, EM routing, 3 iterations": {"mnist": "capsnet_em-iterations3", "smallnorb": "capsnet_em-iterations3"},
        "CapsNet, self-attention routing": {"mnist": "capsnet_attention", "smallnorb": "capsnet_attention"},
        "CNN of matched size": {"mnist": "cnn_matched", "smallnorb": "cnn_matched_norb"},
    },
    "fair": {
        "CapsNet, dynamic routing": {"mnist": "dynamic-iterations3", "smallnorb": "dynamic-iterations3"},
        "CapsNet, EM routing": {"mnist": "em-iterations3", "smallnorb": "em-iterations3"},
        "CNN of their size": {"smallnorb": "cnn"},
    },
}
NOTES = {  # below the summary
    "cpu": "Mean ± standard deviation over n seeds. The CNN has as many parameters as CapsNet with its decoder (MNIST) "
    "or without one (smallNORB).",
    "fair": "Mean ± standard deviation over n seeds. S17 has 0.25 % on MNIST, H18 1.8 % on smallNORB.",
}
CONTRASTS = {
    "cpu": (
        Contrast(
            "three iterations of dynamic routing",
            "one iteration",
            {
                "mnist": ("capsnet-iterations3", "capsnet-iterations1"),
                "smallnorb": ("capsnet-iterations3", "capsnet-iterations1"),
            },
        ),
        Contrast(
            "CapsNet with a decoder",
            "CapsNet without one, both with three iterations",
            {"mnist": ("capsnet_reconstructing-iterations3", "capsnet-iterations3")},
        ),
        Contrast(
            "two iterations of EM routing (spread loss)",
            "three iterations of dynamic routing (margin loss)",
            {
                "mnist": ("capsnet_em-iterations2", "capsnet-iterations3"),
                "smallnorb": ("capsnet_em-iterations2", "capsnet-iterations3"),
            },
        ),
        Contrast(
            "two iterations of EM routing",
            "three iterations of EM routing",
            {
                "mnist": ("capsnet_em-iterations2", "capsnet_em-iterations3"),
                "smallnorb": ("capsnet_em-iterations2", "capsnet_em-iterations3"),
            },
        ),
        Contrast(
            "a CNN with as many parameters",
            "CapsNet with three iterations and a decoder",
            {
                "mnist": ("cnn_matched", "capsnet_reconstructing-iterations3"),
                "affnist-generated": ("cnn_matched_40x40", "capsnet_reconstructing-iterations3"),
            },
        ),
    )
}
METHOD_OF_INTERVALS = """
A difference is the test error of the first method minus that of the second at the same seed, in points of %: its mean
over the seeds and the 95 % t interval. The intervals cover neither the choice of the training images nor that of the
test images, and they are not corrected for the number of comparisons; "higher" and "lower" are said where the paired t
test stays below 0.05 after Holm's correction for all comparisons of this list.
"""


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of the first error minus the second, in points of %, with its 95 % t interval."""

    seeds: int
    planned: int
    mean: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        """Return −0.36 points [−0.41, −0.30], with a third decimal where the interval is narrow."""
        mean = number(self.mean, digits_for(self.low, self.high))
        return f"{mean} points {interval_of_difference(self.low, self.high)}"


def read_runs(reference: Path, study: str) -> pd.DataFrame:
    """Read the committed runs of a study; a run without a valid result has no test error."""
    runs = pd.read_csv(reference / study / "runs.csv", low_memory=False)
    return runs.assign(test_error=runs["test_error"].where(runs["status"] == "ok"))


def cell(runs: pd.DataFrame, experiment: str, variant: str) -> pd.DataFrame:
    """Return the runs of one variant in one experiment. Raises KeyError where there is none."""
    found = runs[(runs["experiment"] == experiment) & (runs["variant"] == variant)]
    if found.empty:
        raise KeyError(f"no run of {experiment}/{variant}")
    return found


def difference(runs: pd.DataFrame, experiment: str, first: str, second: str) -> Difference:
    """Compare two variants of an experiment at equal seeds; seeds in which either has no result are left out."""
    errors = [cell(runs, experiment, variant).set_index("seed")["test_error"] for variant in (first, second)]
    pairs = (errors[0] - errors[1]).dropna()
    mean = float(pairs.mean())
    half = math.inf if len(pairs) < FEWEST else float(stats.t.ppf(0.975, len(pairs) - 1) * pairs.sem())
    p = math.nan if len(pairs) < FEWEST else float(stats.ttest_1samp(pairs, 0).pvalue)
    return Difference(len(pairs), len(errors[0].index.union(errors[1].index)), mean, mean - half, mean + half, p)


def chance_error(data_set: str) -> float:
    """Return the error in % of guessing; of pairs, of guessing both classes."""
    from capsbench.study import catalogue

    facts = catalogue()[data_set]
    return 100 * (1 - 1 / math.comb(facts.num_classes, facts.objects))


def is_at_chance(runs: pd.DataFrame) -> bool:
    """Tell whether every run of a cell is at chance: its error is not below 95 % of the error of guessing."""
    errors = runs["test_error"].dropna()
    return len(errors) > 0 and bool(errors.min() >= 0.95 * chance_error(runs["data_set"].iloc[0]))


def data_title(runs: pd.DataFrame, experiment: str) -> str:
    """Name the data of an experiment, and what files that are not the official ones are."""
    unofficial = runs.loc[runs["experiment"] == experiment, "unofficial"].dropna()
    return named(TITLES.get(experiment, experiment), unofficial.iloc[0] if len(unofficial) else "")


def named(title: str, unofficial: str) -> str:
    """Return the title of data, with what runs.csv says of its files: "smallNORB (JPEG-75 copy)".

    unofficial: "smallNORB (JPEG-75 copy): train.mat: md5 ..."; empty for the official files.
    """
    said = unofficial.partition(": ")[0]
    return said if said.startswith(f"{title} (") else f"{title}, not the official files" if said else title


def summary(reference: Path, study: str) -> str:
    """Return the few rows that stand for a study."""
    runs = read_runs(reference, study)
    rows = SUMMARY[study]
    experiments = list(dict.fromkeys(name for variants in rows.values() for name in variants))
    lines = [["method", *(f"{data_title(runs, name)}, error %" for name in experiments)]]
    for method, variants in rows.items():
        found = (mean_and_std(cell(runs, name, variants[name])) if name in variants else "" for name in experiments)
        lines.append([method, *found])
    return f"{table(lines)}\n\n{NOTES.get(study, '')}"


def found(reference: Path, study: str, form: str = "") -> str:
    """Return the findings of a study, one bullet per contrast, none stronger than its interval.

    form: `brief` leaves out how the intervals are made.
    """
    runs = read_runs(reference, study)
    pairs = [(name, *variants) for contrast in CONTRASTS[study] for name, variants in contrast.variants.items()]
    held = dict(zip(pairs, holm([difference(runs, *pair).p for pair in pairs]), strict=True))
    bullets = "\n".join(f"- {finding(runs, contrast, held)}" for contrast in CONTRASTS[study])
    return bullets if form == "brief" else bullets + "\n" + METHOD_OF_INTERVALS


def finding(runs: pd.DataFrame, contrast: Contrast, held: Mapping[tuple[str, str, str], float] | None = None) -> str:
    """Say what a contrast shows; experiments with the same conclusion share a sentence.

    held: p of each (experiment, first, second), adjusted for all of them; left out: not adjusted.
    """
    said: dict[str, list[str]] = {}
    for experiment, variants in contrast.variants.items():
        p = difference(runs, experiment, *variants).p if held is None else held[(experiment, *variants)]
        conclusion, text = _conclusion(runs, contrast, experiment, variants, p)
        said.setdefault(conclusion, []).append(text)
    sentences = (f"{conclusion}: {', '.join(texts)}." for conclusion, texts in said.items())
    return " ".join(re.sub(r"\w", lambda first: first[0].upper(), sentence, count=1) for sentence in sentences)


def _conclusion(
    runs: pd.DataFrame, contrast: Contrast, experiment: str, variants: tuple[str, str], p: float
) -> tuple[str, str]:
    where = data_title(runs, experiment)
    pair = f"{contrast.first} and {contrast.second}"
    for method, variant in zip((contrast.first, contrast.second), variants, strict=True):
        errors = cell(runs, experiment, variant)
        if is_at_chance(errors):
            chance = chance_error(errors["data_set"].iloc[0])
            text = f"{errors['test_error'].mean():.1f} % error on {where}, where guessing has {chance:.1f} %"
            return f"{method} **stayed at chance**", text
    compared = difference(runs, experiment, *variants)
    if compared.seeds < FEWEST:
        return f"**too few seeds** to compare {pair}", f"{compared.seeds} on {where}"
    missing = compared.planned - compared.seeds
    seeds = f"{compared.seeds} seeds" + (f", {missing} of {compared.planned} without a result" if missing else "")
    text = f"{compared} on {where} ({seeds})"
    if compared.low <= 0 <= compared.high:
        return f"**no difference was shown** between {pair}", text
    if p >= SIGNIFICANT:
        return f"a difference between {pair} is **not shown after Holm's correction** (p = {p:.2g})", text
    sign = "higher" if compared.mean > 0 else "lower"
    return f"{contrast.first} had a **{sign} error** than {contrast.second}", text


def results(reference: Path, study: str, kind: str, name: str) -> str:
    """Return the rows of a study with one network (KIND model), or with one routing in capsnet (KIND routing)."""
    runs = read_runs(reference, study)
    by_routing = (runs["model"] == "capsnet") & (runs["option.routing"] == name)
    chosen = runs[by_routing if kind == "routing" else runs["model"] == name]
    rows = [["data", "variant", "test error %"]]
    for (experiment, variant), errors in chosen.groupby(["experiment", "variant"], sort=False):
        rows.append([data_title(runs, str(experiment)), f"`{variant}`", mean_and_std(errors)])
    return table(rows) if len(rows) > 1 else f"There are no results yet: the study `{study}` has no run of it."


def mean_and_std(runs: pd.DataFrame) -> str:
    """Return mean ± standard deviation over the seeds, and the number of seeds with a result."""
    errors = runs["test_error"].dropna()
    count = f"{len(errors)}" if len(errors) == len(runs) else f"{len(errors)} of {len(runs)}"
    if errors.empty:
        return f"no result (n = {count})"
    spread = f" ± {errors.std():.2f}" if len(errors) > 1 else ""
    return f"{errors.mean():.2f}{spread} (n = {count})" + (", at chance" if is_at_chance(runs) else "")


def table(rows: list[list[str]]) -> str:
    """Return a Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
