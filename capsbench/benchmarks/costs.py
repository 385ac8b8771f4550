"""What a study costs: runs, images shown in training, and hours from measured speeds, by table."""

import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from capsbench.benchmarks.networks import network_digest
from capsbench.study import Data, Plan, Run

SPEEDS = Path("results/reference/speeds.csv")


def images_per_epoch(data: Data) -> int:
    """Return how many images a training epoch shows: a new drawing of pairs, or the training set after its cuts."""
    pairs: int | None = getattr(data.options, "train_pairs", None)
    if pairs is not None:
        return pairs
    return data.trained_images


def images_shown(run: Run) -> int:
    """Return how many images a run sees in training, if no stopping rule ends it earlier."""
    epoch_images = images_per_epoch(run.data)
    epochs, rest = divmod(run.training.total_steps(epoch_images), math.ceil(epoch_images / run.training.batch_size))
    return epochs * epoch_images + rest * run.training.batch_size


def cost(plan: Plan, speeds: pd.DataFrame) -> pd.DataFrame:
    """Return what the runs of a study cost, a row per run, in their order.

    Columns: table, experiment, variant, images; and for each machine whose speed at some network of the study is
    known, a column of hours named by the machine, nan where a network was not measured there. Hours are those of
    the training steps alone.

    Args:
        plan: the study.
        speeds: from `read_speeds`.
    """
    measured: dict[tuple[str, int | None], dict[str, float]] = {}  # images per second by machine
    for row in speeds.to_dict("records"):
        threads = None if pd.isna(row["threads"]) else int(row["threads"])
        measured.setdefault((row["network"], threads), {})[_machine(row["machine"], threads)] = row["images_per_second"]
    rows = []
    for run in plan.runs:
        network, images = network_digest(run), images_shown(run)
        known = measured.get((network, None), {}) | measured.get((network, run.training.threads), {})
        hours = {machine: images / speed / 3600 for machine, speed in known.items()}
        place = {"table": run.table, "experiment": run.experiment, "variant": run.variant}
        rows.append({**place, "images": images, **hours})
    return pd.DataFrame(rows)


def cost_lines(plan: Plan, speeds: pd.DataFrame, source: Path) -> list[str]:
    """Return a short text: aligned columns by table, then what the hours are.

    Args:
        plan: the study.
        speeds: from `read_speeds`.
        source: the file of speeds, for the text.
    """
    frame = cost(plan, speeds)
    machines = list(frame.columns[4:])
    marks = [f" ({chr(ord('a') + n)})" if len(machines) > 1 else "" for n in range(len(machines))]
    heading = ["table", "runs", "images", *(f"hours{mark}" for mark in marks)]
    groups = list(frame.groupby("table", sort=False))
    if len(groups) > 1:
        groups.append(("all", frame))
    lines = _aligned([heading, *(_cells(name, group, machines) for name, group in groups)])
    for machine, mark in zip(machines, marks, strict=True):
        lines.append(f"hours{mark}: {machine}; training steps alone, one run after another; from {source}")
        if unmeasured := _unmeasured(frame, machine):
            lines.append(f"  left out, not measured there: {unmeasured}")
    if not machines:
        lines.append(
            "hours: no speed of these networks is known; "
            f"'capsbench bench networks {plan.path} --output {source}' measures them on this machine"
        )
    if any(run.training.match or run.training.early_stopping for run in plan.runs):
        lines.append("images and hours are upper limits of training, as some runs may stop earlier; looks at tests add")
    return lines


def _unmeasured(frame: pd.DataFrame, machine: str) -> str:
    """Name the cells without hours on a machine; a table that has none is named as a whole."""
    named: list[str] = []
    for table, group in frame.groupby("table", sort=False):
        missing = group[group[machine].isna()]
        if len(missing) == len(group):
            named.append(f"all of {table}")
        else:
            named += dict.fromkeys(f"{row.experiment}/{row.variant}" for row in missing.itertuples())
    return ", ".join(named)


def _machine(name: str, threads: int | None) -> str:
    """Name a machine for people; threads: None on a GPU."""
    return name if threads is None else f"{name}, {threads} thread{'s' if threads > 1 else ''} per run"


def _cells(name: str, group: pd.DataFrame, machines: Iterable[str]) -> list[str]:
    """Return a row of the text; hours that leave out a network are a lower limit."""
    hours = []
    for machine in machines:
        known = group[machine].dropna()
        shown = f"{known.sum():,.1f}" if known.sum() >= 0.1 else f"{known.sum():.2g}"
        hours.append("-" if known.empty else ("" if len(known) == len(group) else "> ") + shown)
    return [name, f"{len(group):,}", f"{group['images'].sum():,}", *hours]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Return lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
