"""Where the networks of a contrast differ: on training images, on held-out ones, or only in the test.

A method with a higher error in training as well has learnt less; one with a higher error only in the test carries
less over to it. Used by docs/generate.py.
"""

import math
from pathlib import Path
from typing import Any

import pandas as pd
from contrasted import chosen, read_contrasts
from findings import data_title, last_epochs, read_runs, table
from remembered import remembered

from capsbench.analysis.contrasts import digits_for, interval_of_difference, number
from capsbench.analysis.statistics import FEWEST, PairedSummary, summarise_pairs

PARTS = {  # column -> what a table calls it
    "train": "in training",
    "validation": "on validation images",
    "familiar": "in the familiar test",
    "test": "in the test",
}


def fit(reference: Path, study: str, *families: str) -> str:
    """Return the contrasts of some families, a row each and experiment, with the differences in every part.

    Raises:
        ValueError: the study has no such family.
    """
    compared = chosen(reference, study, families).to_dict("records")
    runs = errors_of(reference, study)
    cells = [{part: difference_text(_difference(runs, row, part)) for part in PARTS} for row in compared]
    parts = [part for part in PARTS if any(cell[part] for cell in cells)]
    rows = [["error of the first minus that of the second", "data", *(PARTS[part] for part in parts)]]
    for row, cell in zip(compared, cells, strict=True):
        title = data_title(runs, row["experiment"])
        rows.append([row["contrast"], title, *(cell[part] for part in parts)])
    return (
        f"{table(rows)}\n\nPoints of error, negative where the first is better: mean over seeds, paired, with the 95 % "
        "t interval, not corrected for the number of rows. In training: in the last epoch, counted batch by batch "
        "while the weights change."
    )


@remembered("runs.csv", "runs.tar.xz", "tables/contrasts.csv")
def on_validation_images(reference: Path, study: str) -> pd.DataFrame:
    """Return the contrasts of a study on validation images in place of the test, for those that have them.

    Returns:
        Rows as those of contrasts.csv. None was declared, so `p_holm` is not corrected; `differences` by seed are
        left out, and "the same" is not tested.
    """
    runs, rows = errors_of(reference, study), []
    for row in read_contrasts(reference, study).to_dict("records"):
        found = _difference(runs, row, "validation")
        if found.n >= FEWEST:
            ends = {"mean": found.mean, "low": found.low, "high": found.high, "p_holm": found.p, "p_same": math.nan}
            rows.append({**row, **ends, "n": found.n, "differences": ""})
    return pd.DataFrame(rows)


def errors_of(reference: Path, study: str) -> pd.DataFrame:
    """Return the runs of a study with their errors in %, a column for each part."""
    runs, last = read_runs(reference, study), last_epochs(reference, study)
    ended = {run["key"]: last[run["key"]] if run["status"] == "ok" else {} for run in runs.to_dict("records")}
    found = {
        part: [100 * (1 - epoch.get(f"{part}_accuracy", float("nan"))) for epoch in ended.values()]
        for part in ("train", "validation")
    }
    familiar = runs.get("familiar_error", pd.Series(float("nan"), index=runs.index))
    return runs.assign(**found, familiar=familiar, test=runs["test_error"])


def _difference(runs: pd.DataFrame, row: dict[str, Any], part: str) -> PairedSummary:
    """Compare the errors of a part over the seeds that both networks of a contrast have."""
    here = runs[runs["experiment"] == row["experiment"]].set_index("seed")
    first, second = (here.loc[here["variant"] == row[side], part] for side in ("a", "b"))
    both = pd.concat([first, second], axis=1, keys=["a", "b"]).dropna()
    return summarise_pairs(list(both["a"]), list(both["b"]))


def difference_text(found: PairedSummary) -> str:
    """Return mean and interval of a difference; empty where it has too few seeds."""
    if found.n < FEWEST:
        return ""
    if found.identical:
        return "equal in every seed"
    return f"{number(found.mean, digits_for(found.low, found.high))} {interval_of_difference(found.low, found.high)}"
