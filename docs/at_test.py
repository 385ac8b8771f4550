"""Networks tested with one routing iteration in place of those of their training. Used by docs/generate.py.

From what the protocol `routing` measured on the trained networks, which the reference of a study has.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from contrasted import SAME_NOTE, is_same, is_shown
from findings import cell, data_title, read_runs, table
from remembered import remembered

from capsbench.analysis.contrasts import digits_for, interval_of_difference, number
from capsbench.analysis.margins import TENTH
from capsbench.analysis.measures import NAME, Measures, load_measures
from capsbench.analysis.statistics import FEWEST, holm, p_of_same, summarise_pairs


@remembered("runs.csv", NAME)
def one_iteration_at_test(reference: Path, study: str) -> pd.DataFrame:
    """Compare the errors of networks with one routing iteration at test with those of the same networks as trained.

    Returns:
        A row per variant that was trained with more than one iteration, and experiment, in at least three seeds, with
        the columns of contrasts.csv: `contrast` is the variant's name, `mean`, `low` and `high` are points of error,
        one iteration minus as trained, `p_holm` and `p_same` are corrected for all rows of the study. Also `trained`,
        the number of iterations, `as_trained` and `with_one`, mean errors in %, `entropy`, the mean coupling entropy as
        trained (1: equal couplings), and `images`, how many were shown.
    """
    runs = read_runs(reference, study)
    rows = list(_rows(runs, load_measures(reference / study / NAME)))
    found = pd.DataFrame(rows)
    return found.assign(p_holm=holm(list(found["p"])), p_same=holm(list(found["p_same"]))) if rows else found


def _rows(runs: pd.DataFrame, measures: Measures) -> Iterator[dict[str, Any]]:
    for (experiment, variant), of_variant in runs.groupby(["experiment", "variant"], sort=False):
        found = {row.seed: measures.get(row.key, {}).get("routing", {}) for row in of_variant.itertuples()}
        found = {seed: measured for seed, measured in sorted(found.items()) if "error_at_one" in measured}
        trained = {number for measured in found.values() for number in measured["iterations_as_trained"]}
        if len(found) < FEWEST or trained == {1}:
            continue
        ones = [measured["error_at_one"] for measured in found.values()]
        own = [measured["error"] for measured in found.values()]
        pairs = summarise_pairs(ones, own)
        yield {
            "contrast": variant,
            "experiment": experiment,
            "data_set": of_variant["data_set"].iloc[0],
            "n": pairs.n,
            "mean": pairs.mean,
            "low": 0.0 if pairs.identical else pairs.low,
            "high": 0.0 if pairs.identical else pairs.high,
            "p": pairs.p,
            "margin": sum(own) / len(own) / TENTH,
            "p_same": p_of_same(ones, own),
            "differences": "; ".join(f"{seed}: {m['error_at_one'] - m['error']}" for seed, m in found.items()),
            "unofficial": of_variant["unofficial"].iloc[0],
            "at_chance": 0,
            "trained": " or ".join(map(str, sorted(trained))),
            "as_trained": sum(own) / len(own),
            "with_one": sum(ones) / len(ones),
            "entropy": sum(measured["entropy"] for measured in found.values()) / len(found),
            "images": next(iter(found.values()))["images"],
        }


def at_test(reference: Path, study: str) -> str:
    """Return a table with a row per method, and what is to be known of its numbers."""
    runs, found = read_runs(reference, study), one_iteration_at_test(reference, study)
    experiments = list(dict.fromkeys(found["experiment"]))
    titles = [data_title(runs, name) for name in experiments]
    rows = [["network", "iterations in training", f"coupling entropy ({' / '.join(titles)})", *titles]]
    for (variant, trained), cells in found.groupby(["contrast", "trained"], sort=False):
        texts = {row["experiment"]: _difference(row) for row in cells.to_dict("records")}
        entropies = " / ".join(f"{entropy:.3f}" for entropy in cells["entropy"])
        label = str(cell(runs, cells["experiment"].iloc[0], str(variant))["label"].iloc[0])
        rows.append([label, str(trained), entropies, *(texts.get(name, "") for name in experiments)])
    images = " or ".join(f"{count:,}" for count in sorted(set(found["images"])))
    seeds = " or ".join(map(str, sorted(set(found["n"]))))
    note = SAME_NOTE.replace("the second's", "that as trained") if any(map(is_same, found.to_dict("records"))) else ""
    return (
        f"{table(rows)}\n\nTest error in % with the iterations of training, then with one; in brackets the difference "
        f"in points, with one minus as trained: mean over {seeds} seeds with the 95 % t interval, on {images} test "
        "images, the choice of which is not in it. Coupling entropy: as trained; 1 is equal couplings. Bold: zero lies "
        "outside the interval, also after Holm's correction "
        f"for all {int(found['p'].notna().sum())} cells."
        f"{note}"
    )


def _difference(row: dict[str, Any]) -> str:
    if row["low"] == row["high"]:
        return f"{row['as_trained']:.2f} → {row['with_one']:.2f} (equal in every seed)"
    mean = number(row["mean"], digits_for(row["low"], row["high"]))
    difference = f"{mean} {interval_of_difference(row['low'], row['high'])}"
    shown = f"**{difference}**" if is_shown(row) else f"≈ {difference}" if is_same(row) else difference
    return f"{row['as_trained']:.2f} → {row['with_one']:.2f} ({shown})"
