"""What networks learn from random crops of the training images and from central ones. Used by docs/generate.py."""

from pathlib import Path

import pandas as pd
from findings import data_title, table
from fitted import difference_text, errors_of

from capsbench.analysis.statistics import summarise_pairs

NAMES = {"toynorb-chosen": "solids", "toynorb-elevation": "solids, new elevations"}  # of experiments
ALIKE = {  # variant with central crops -> the same network with random ones
    "capsnet_em_twice": "capsnet_em-iterations2",
    "capsnet_em_thrice": "capsnet_em-iterations3",
}


def crops(reference: Path, study: str, *experiments: str) -> str:
    """Return the networks that two experiments share: errors in training and in the test, and what changes.

    experiments: one with random crops and one of the same images with central crops, and so on in twos; the change is
    the second minus the first, by seed.

    Raises:
        ValueError: an experiment is left over, two share no network, or a network differs in size or steps of training.
    """
    if len(experiments) % 2:
        raise ValueError(f"{experiments[-1]} has no second experiment")
    runs = errors_of(reference, study)
    runs = runs[runs["status"] == "ok"].sort_values("seed", kind="stable")
    heads = [
        f"{part}, {how}" for part in ("wrong in training %", "test error %") for how in ("random crops", "central")
    ]
    rows = [["data", "network", *heads, "change of the test error"]]
    for first, second in zip(experiments[::2], experiments[1::2], strict=True):
        before, after = (runs[runs["experiment"] == name] for name in (first, second))
        shared = [name for name in dict.fromkeys(after["variant"]) if ALIKE.get(name, name) in set(before["variant"])]
        if not shared:
            raise ValueError(f"{first} and {second} share no network")
        title = NAMES.get(first) or data_title(runs, first)
        for name in shared:
            compared = before[before["variant"] == ALIKE.get(name, name)], after[after["variant"] == name]
            if len({(run.parameters, run.steps) for both in compared for run in both.itertuples()}) > 1:
                raise ValueError(f"{name} has not the same size or training in {first} and {second}")
            rows.append([title, *_row(*compared)])
    return table(rows)


def _row(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    by_seed = pd.concat([before.set_index("seed")["test"], after.set_index("seed")["test"]], axis=1, keys=["a", "b"])
    both = by_seed.dropna()
    change = difference_text(summarise_pairs(list(both["b"]), list(both["a"])))
    trained = [_range(runs["train"]) for runs in (before, after)]
    tested = [", ".join(f"{error:.1f}" for error in runs["test"]) for runs in (before, after)]
    return [str(after["label"].iloc[0]), *trained, *tested, change]


def _range(errors: pd.Series) -> str:
    low, high = (f"{value:.1f}" for value in (errors.min(), errors.max()))
    return low if low == high else f"{low} to {high}"
