"""What of a seed makes its error, first weights or what is drawn after them: two factors. Used by docs/generate.py."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from findings import data_title, read_runs, table
from scipy.stats import f as f_distribution

from capsbench.analysis.contrasts import p_value


class Part(NamedTuple):
    """What errors owe to one factor. share: of the sum of squares; apart: largest minus smallest of its means."""

    share: float
    apart: float
    p: float


def starts(reference: Path, study: str) -> str:
    """Return each network that was trained from several starts at several seeds: its errors, and what they follow.

    Raises:
        ValueError: a network has no run for one of its starts at one of its seeds.
    """
    runs = read_runs(reference, study)
    network = runs["variant"].str.rpartition("-start")[0]
    rows = [["data", "network", "error % of the runs", "between starts", "between orders", "share of the variance"]]
    for (experiment, name), own in runs.groupby(["experiment", network], sort=False):
        errors = own.pivot(index="option.start", columns="seed", values="test_error").to_numpy()
        if np.isnan(errors).any():
            raise ValueError(f"{study}/{experiment}/{name} has no error for one of its starts at one of its seeds")
        both = two_factors(errors)
        shares = [100 * part.share for part in both]
        rows.append([
            data_title(runs, str(experiment)), own["label"].iloc[0].rpartition(", start")[0],
            f"{errors.min():.1f} to {errors.max():.1f}",
            *(f"{part.apart:.1f} (p = {p_value(part.p)})".replace("= <", "< ") for part in both),
            f"starts {shares[0]:.0f} %, orders {shares[1]:.0f} %, neither alone {100 - sum(shares):.0f} %",
        ])  # fmt: skip
    return table(rows)


def two_factors(errors: "np.ndarray[Any, np.dtype[np.float64]]") -> tuple[Part, Part]:
    """Analyse the variance of errors [A, B], one of each pair, by row and by column."""
    mean, (rows, columns) = errors.mean(), errors.shape
    means = [errors.mean(axis=1), errors.mean(axis=0)]
    squares = [each * ((of - mean) ** 2).sum() for each, of in zip((columns, rows), means, strict=True)]
    total = ((errors - mean) ** 2).sum()
    free = (rows - 1) * (columns - 1)
    rest = (total - sum(squares)) / free
    by_row, by_column = (
        Part(part / total, np.ptp(of), float(f_distribution.sf(part / (len(of) - 1) / rest, len(of) - 1, free)))
        for part, of in zip(squares, means, strict=True)
    )
    return by_row, by_column
