"""How far the images that decoders draw are from the true ones. Used by docs/generate.py."""

from pathlib import Path

import pandas as pd
from findings import data_title, read_runs, table
from summaries import SUMMARY, TITLES


def drawn(reference: Path, study: str, experiment: str = "") -> str:
    """Return the squared errors of the networks with a decoder, as ranges over the seeds; pairs of digits: of both.

    experiment: of which all networks are listed; by default the methods of the study's summary, by data set.

    Raises:
        ValueError: no run of the experiment has drawn.
    """
    runs = read_runs(reference, study)
    runs = runs[runs["squared_error"].notna()]
    if experiment:
        own = runs[runs["experiment"] == experiment]
        if own.empty:
            raise ValueError(f"no run of {study} {experiment} has drawn")
        data = str(own["data_set"].iloc[0])
        titles = {experiment: TITLES.get(data, data)}
        rows = {str(label): {experiment: str(name)} for name, label in zip(own["variant"], own["label"], strict=True)}
    else:
        titles = {name: data_title(runs, name) for name in TITLES if name in set(runs["experiment"])}
        rows = SUMMARY[study]
    lines = [["squared error of an image", *titles.values()]]
    ranges = {cell: _range(errors) for cell, errors in runs.groupby(["experiment", "variant"])["squared_error"]}
    for label, variants in rows.items():
        cells = [ranges.get((name, variants.get(name)), "") for name in titles]
        if any(cells):
            lines.append([label, *cells])
    return table(lines)


def _range(errors: "pd.Series[float]") -> str:
    return f"{errors.min():.1f} to {errors.max():.1f}"
