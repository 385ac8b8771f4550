"""A cell of a study: the runs of one variant in one experiment, what came out, and the published value beside it.

Tables, plots of results and the page are made from cells.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from capsbench.analysis.published import PUBLISHED_IN, Published, counterpart, deviations
from capsbench.analysis.statistics import Summary, summarise
from capsbench.analysis.verdicts import Ends, Target, Verdict, judge
from capsbench.run.match import ROUNDING, TOLERANCE
from capsbench.study import Plan, Run

_SHARED = {
    "code": "trained with {} versions of the code",
    "training_data": "trained on {} training sets",
    "measured_by": "measured by {} versions of the code",
}  # by all seeds of a cell


@dataclass(frozen=True)
class Matching:
    """Familiar errors beside those of the variant that training was matched to, at equal seeds.

    variant: its label. overshoot: mean of its familiar error less ours, in points. problem: why they do not match,
    empty where they do.
    """

    variant: str
    overshoot: float
    problem: str


@dataclass(frozen=True)
class Cell:
    """The runs of a variant in an experiment.

    run: the first of them, for model, options, data and training. label: what people call the variant. errors: test
    error in % by seed, of the runs that ended; familiar, per_digit: likewise, empty where the task has none. summary:
    of the errors. sampling_error: standard error in points from the draw of the test items, see `error_of_sampling`.
    published: the value beside them, None where papers have none. deviations: what keeps the two from being compared,
    a short phrase each. unofficial: files that are not the official ones. mixed: in what the seeds differ besides their
    draws, which they should not. machines: on which, and with which versions, seeds were trained. parameters, seconds
    of training, images_per_second: medians over the runs, since one may have been paused; nan where there is none.
    keys: of all planned runs.
    """

    run: Run
    label: str
    keys: tuple[str, ...]
    errors: dict[int, float]
    familiar: dict[int, float]
    per_digit: dict[int, float]
    diverged: int
    failed: int
    stuck: int
    diagnostics: str
    summary: Summary
    sampling_error: float
    published: Published | None
    verdict: Verdict
    deviations: tuple[str, ...]
    unofficial: tuple[str, ...]
    mixed: tuple[str, ...]
    machines: tuple[str, ...]
    matching: Matching | None
    parameters: float
    seconds: float
    images_per_second: float

    @property
    def experiment(self) -> str:
        """The experiment of the study."""
        return self.run.experiment

    @property
    def variant(self) -> str:
        """The variant as the study names it, expanded."""
        return self.run.variant

    @property
    def data_set(self) -> str:
        """The data set's name."""
        return self.run.data.name

    @property
    def planned(self) -> int:
        """How many runs the study has here."""
        return len(self.keys)

    @property
    def missing(self) -> int:
        """How many runs have not ended."""
        return self.planned - len(self.errors) - self.diverged - self.failed


def cells(plan: Plan, runs: pd.DataFrame) -> list[Cell]:
    """Return the cells of a study in the order of its file.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`; those of some experiments give the cells of these.
    """
    here = set(runs["experiment"])
    first: dict[tuple[str, str], Run] = {}
    for run in plan.runs:
        if run.experiment in here:
            first.setdefault((run.experiment, run.variant), run)
    return [_cell(run, plan, runs) for run in first.values()]


def _cell(run: Run, plan: Plan, runs: pd.DataFrame) -> Cell:
    rows = _rows(runs, run.experiment, run.variant)
    done = rows[rows["status"] == "ok"]
    published = counterpart(run, PUBLISHED_IN[run.table])
    matching = _matching(run, rows, runs)
    unofficial = _unofficial(done)
    reasons = [] if published is None else deviations(run, published, plan)
    if matching and matching.problem:
        reasons.append(matching.problem)
    if unofficial:
        reasons.append("not the official files")
    counts = rows["status"].value_counts()
    stuck = rows[rows["stuck_at_chance"].eq(True)] if "stuck_at_chance" in rows else rows.head(0)
    errors = _by_seed(done, "test_error")
    if len(errors) < len(done):
        raise ValueError(f"{run.experiment}/{run.variant}: a run that ended has no number as its test error")
    ends = Ends(
        tuple(errors.values()), int(counts.get("diverged", 0)), int(counts.get("failed", 0)),
        len(rows) - len(errors) - int(counts.get("diverged", 0)) - int(counts.get("failed", 0)), len(stuck),
    )  # fmt: skip
    sampling_error = error_of_sampling(run, ends.errors, done)
    return Cell(
        run=run,
        label=str(rows["label"].iloc[0]),
        keys=tuple(rows["key"]),
        errors=errors,
        familiar=_by_seed(done, "familiar_error"),
        per_digit=_by_seed(done, "per_digit_error"),
        diverged=ends.diverged,
        failed=ends.failed,
        stuck=ends.stuck,
        diagnostics=_diagnostics(stuck),
        summary=summarise(ends.errors),
        sampling_error=sampling_error,
        published=published,
        verdict=_verdict(run, ends, published, reasons, sampling_error),
        deviations=tuple(reasons),
        unofficial=unofficial,
        mixed=_mixed(done),
        machines=tuple(dict.fromkeys(done["machines"].dropna())) if "machines" in done else (),
        matching=matching,
        **{name: _median(done, name) for name in ("parameters", "seconds", "images_per_second")},
    )


def _verdict(
    run: Run, ends: Ends, published: Published | None, reasons: list[str], sampling_error: float
) -> Verdict:  # fmt: skip
    if not ends.errors and not ends.diverged + ends.failed:
        return Verdict("not run")
    if published is None:
        return Verdict("no published value", "; ".join(reasons))
    same_data = run.data.name == published.data_set
    difference = summarise(ends.errors).mean - published.error if same_data else math.nan
    if reasons:
        return Verdict("not comparable", "; ".join(reasons), difference)
    target = Target.of(published)
    try:
        return judge(ends, target, sampling_error, run.data.facts.chance_error)
    except ValueError as error:
        return Verdict("not comparable", str(error), difference)


def error_of_sampling(run: Run, errors: Sequence[float], done: pd.DataFrame) -> float:
    """Return the standard error in points that comes from the draw of the test items; 0 where all are tested.

    Pairs of digits are drawn, so that another draw gives another error; elsewhere the paper's test items are ours.
    """
    if not hasattr(run.data.options, "test_pairs") or not errors:
        return 0.0
    share = math.fsum(errors) / len(errors) / 100
    return 100 * math.sqrt(share * (1 - share) / float(done["test_images"].iloc[0]))


def _matching(run: Run, rows: pd.DataFrame, runs: pd.DataFrame) -> Matching | None:
    """Compare the familiar errors of a cell, as they were evaluated; None where training stopped by itself."""
    if not run.training.match:
        return None
    other = _rows(runs, run.experiment, run.training.match)
    ours, theirs = (_by_seed(part, "familiar_error") for part in (rows, other))
    ended = [int(seed) for seed in rows.loc[rows["status"] == "ok", "seed"]]
    missing = [seed for seed in ended if seed not in theirs]
    unknown = [seed for seed in ended if seed not in ours]
    gaps = {seed: theirs[seed] - error for seed, error in ours.items() if seed in theirs}
    worst = max(gaps, key=lambda seed: abs(gaps[seed]), default=None)
    problem = ""
    if unknown:
        problem = f"familiar error not matched (seed {unknown[0]}: none is known)"
    elif missing:
        problem = f"familiar error not matched (seed {missing[0]}: no result of {run.training.match})"
    elif worst is not None and abs(gaps[worst]) > _tolerance(rows) + ROUNDING:
        problem = f"familiar error not matched ({ours[worst]:.2f} against {theirs[worst]:.2f}, seed {worst})"
    overshoot = math.fsum(gaps.values()) / len(gaps) if gaps else math.nan
    return Matching(str(other["label"].iloc[0]), overshoot, problem)


def _tolerance(rows: pd.DataFrame) -> float:
    known = rows["match_tolerance"].dropna() if "match_tolerance" in rows else rows.head(0)
    return float(known.max()) if len(known) else TOLERANCE


def _rows(runs: pd.DataFrame, experiment: str, variant: str) -> pd.DataFrame:
    return runs[(runs["experiment"] == experiment) & (runs["variant"] == variant)]


def _by_seed(rows: pd.DataFrame, name: str) -> dict[int, float]:
    if name not in rows:
        return {}
    known = rows[["seed", name]].dropna()
    return dict(zip(map(int, known["seed"]), map(float, known[name]), strict=True))


def _median(done: pd.DataFrame, name: str) -> float:
    return float(done[name].median()) if name in done and len(done) else math.nan


def _unofficial(done: pd.DataFrame) -> tuple[str, ...]:
    """Return the lines about files that are not official, each once, over all seeds of a cell."""
    found: Any = done["unofficial"].dropna() if "unofficial" in done else []
    return tuple(dict.fromkeys(line for lines in found for line in lines.split("; ") if line))


def _mixed(done: pd.DataFrame) -> tuple[str, ...]:
    """Say what is not the same in all seeds of a cell: "trained with 2 versions of the code (seeds 0, 1; 2)"."""
    found = []
    for column, what in _SHARED.items():
        known = done.dropna(subset=column) if column in done else done.head(0)
        seeds = [", ".join(map(str, own["seed"])) for _, own in known.groupby(column, sort=False)]
        if len(seeds) > 1:
            found.append(f"{what.format(len(seeds))} (seeds {'; '.join(seeds)})")
    return tuple(found)


def _diagnostics(stuck: pd.DataFrame) -> str:
    """Return those of the first run that has any."""
    told = stuck.dropna(subset="diagnostics")
    return "" if told.empty else f"seed {told['seed'].iloc[0]}: {told['diagnostics'].iloc[0]}"
