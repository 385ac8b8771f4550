"""What of a seed makes its error, first weights or what is drawn after them: two factors. Used by docs/generate.py."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from findings import data_title, table
from fitted import errors_of
from scipy.stats import f as f_distribution
from scipy.stats import pearsonr

from capsbench.analysis.contrasts import p_value
from capsbench.analysis.measures import NAME as MEASURES
from capsbench.analysis.measures import load_measures
from capsbench.analysis.statistics import holm

SIGNIFICANT = 0.05
PAIRS = 3  # of classes, named for a network


class Part(NamedTuple):
    """What errors owe to one factor. share: of the sum of squares; apart: largest minus smallest of its means."""

    share: float
    apart: float
    p: float


def starts(reference: Path, study: str, *classes: str) -> str:
    """Return each network that was trained from several starts at several seeds: its errors, and what they go with.

    classes: "EXPERIMENT=CLASS", for a row of the errors on a class alone, which the study has to have as `confusion`.

    Raises:
        ValueError: a network has no run for one of its starts at one of its seeds.
    """
    runs = errors_of(reference, study)
    network = runs["variant"].str.rpartition("-start")[0]
    rows = [
        ["data", "network", "error % of the runs", "between starts", "between orders", "share of the variance", "r"]
    ]
    tests: dict[str, float] = {}
    for (experiment, name), own in runs.groupby(["experiment", network], sort=False):
        data, label = data_title(runs, str(experiment)), own["label"].iloc[0].rpartition(", start")[0]
        errors = _errors(own, f"{study}/{experiment}/{name}")
        in_training = pearsonr(own["test"], own["train"]).statistic
        rows.append([data, label, *_cells(errors), f"{in_training:.2f}".replace("-", "−")])
        for factor, part in zip(("starts", "orders"), two_factors(errors), strict=True):
            tests[f"{factor} of {label} on {data}"] = part.p
        for chosen in (text.partition("=")[2] for text in classes if text.partition("=")[0] == experiment):
            measures = load_measures(reference / study / MEASURES)
            alone = own.assign(test_error=[_error_of(measures[key]["confusion"], chosen) for key in own["key"]])
            cells = _cells(_errors(alone, f"{study}/{experiment}/{name}"))
            rows.append([data, f"{label}: class {chosen} alone", *cells, ""])
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    said = {what: f"{what} (p = {p_value(p)})".replace("= <", "< ") for what, p in corrected.items()}
    shown = [said[what] for what, p in corrected.items() if p < SIGNIFICANT]
    found = " and ".join(shown) or f"none; it is smallest for {said[min(corrected, key=lambda what: corrected[what])]}"
    return (
        f"{table(rows)}\n\nAfter Holm's correction for the {len(tests)} tests of whole networks p is below "
        f"{SIGNIFICANT:g} for {found}."
    )


def taken_for(reference: Path, study: str, *experiments: str) -> str:
    """Return which classes the runs of each network of some experiments differ most in taking for another.

    The `PAIRS` pairs, right class and predicted one, whose share of the images of the right class has the largest
    standard deviation over the runs; with r, the correlation over the runs of the two directions of the first pair.
    """
    runs, measures = errors_of(reference, study), load_measures(reference / study / MEASURES)
    runs = runs[runs["experiment"].isin(experiments)]
    network = runs["variant"].str.rpartition("-start")[0]
    rows = [
        [
            "data",
            "network",
            "runs",
            "taken for another, of the images of the class: smallest and largest of the runs",
            "r",
        ]
    ]
    for (experiment, _), own in runs.groupby(["experiment", network], sort=False):
        found = [measures[key]["confusion"] for key in own["key"]]
        names, matrices = found[0]["classes"], np.array([each["matrix"] for each in found], dtype=np.float64)
        shares = 100 * matrices / matrices.sum(axis=2, keepdims=True)  # [runs, right, predicted]
        spread = shares.std(axis=0, ddof=1)
        np.fill_diagonal(spread, 0.0)
        places = [divmod(int(at), len(names)) for at in np.argsort(-spread, axis=None)[:PAIRS]]
        low, high = shares.min(axis=0), shares.max(axis=0)
        listed = [f"{names[a]} for {names[b]} {low[a, b]:.0f} to {high[a, b]:.0f} %" for a, b in places]
        right, taken = places[0]
        r = pearsonr(shares[:, right, taken], shares[:, taken, right]).statistic
        label = own["label"].iloc[0].rpartition(", start")[0]
        rows.append([
            data_title(runs, str(experiment)), label, str(len(own)), ", ".join(listed), f"{r:.2f}".replace("-", "−")
        ])  # fmt: skip
    return table(rows)


def _errors(runs: pd.DataFrame, name: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the errors [starts, orders] of a network."""
    errors = runs.pivot(index="option.start", columns="seed", values="test_error").to_numpy()
    if np.isnan(errors).any():
        raise ValueError(f"{name} has no error for one of its starts at one of its seeds")
    return errors


def _cells(errors: "np.ndarray[Any, np.dtype[np.float64]]") -> list[str]:
    both = two_factors(errors)
    shares = [100 * part.share for part in both]
    return [
        f"{errors.min():.1f} to {errors.max():.1f}",
        *(f"{part.apart:.1f} (p = {p_value(part.p)})".replace("= <", "< ") for part in both),
        f"starts {shares[0]:.0f} %, orders {shares[1]:.0f} %, neither alone {100 - sum(shares):.0f} %",
    ]


def _error_of(confusion: dict[str, Any], name: str) -> float:
    """Return the error in % on the images of a class. Raises ValueError for one that is not there."""
    row = confusion["matrix"][(at := confusion["classes"].index(name))]
    return 100 * (1 - row[at] / sum(row))


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
