"""Whether differences on MultiMNIST grow where the two digits of a pair overlap more. Used by docs/generate.py.

From the right/wrong bits of a reference and the places of the digits in its test pairs, which follow from seed and
index alone: no image is read.
"""

from pathlib import Path

import numpy as np
import torch
from contrasted import chosen
from findings import table
from fitted import difference_text

import capsbench
from capsbench.analysis.correct_bits import NAME, read_correct
from capsbench.analysis.statistics import FEWEST, summarise_pairs
from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.pairs import FRAME, Pairs
from capsbench.study import Plan

BOX = 20  # side in pixels of the box that the ink of MNIST's digits fits
PARTS = ("least overlap", "second quarter", "third quarter", "most overlap")


def overlap(reference: Path, study: str, experiment: str, *families: str) -> str:
    """Return the contrasts of some families in an experiment of pairs, by quarters of the overlap of the two boxes.

    Raises:
        ValueError: the study has no such family or experiment, or the families no contrast there with three seeds.
    """
    quarters = quarters_of_overlap(capsbench.load_study(reference / study / "study.yaml"), experiment)
    right = read_correct(reference / study / NAME).right
    rows = [["error of the first minus that of the second", *PARTS, "most minus least overlap"]]
    for row in chosen(reference, study, families).to_dict("records"):
        both = [by_seed(right, experiment, str(row[side]), quarters) for side in ("a", "b")]
        seeds = sorted(both[0].keys() & both[1].keys())
        if row["experiment"] != experiment or len(seeds) < FEWEST:
            continue
        first, second = (np.stack([errors[seed] for seed in seeds], axis=1) for errors in both)  # [4, seeds]
        cells = [_text(first[part], second[part]) for part in range(len(PARTS))]
        rows.append([str(row["contrast"]), *cells, _text((first - second)[-1], (first - second)[0])])
    if len(rows) == 1:
        raise ValueError(f"no contrast of {', '.join(families)} in {experiment} has {FEWEST} seeds")
    return table(rows)


def quarters_of_overlap(plan: Plan, experiment: str) -> np.ndarray:
    """Return for each test pair of an experiment in which quarter it lies by overlap, 0 (least) to 3: int [pairs].

    Pairs of equal overlap are in the same quarter, so quarters differ a little in size.

    Raises:
        ValueError: the study has no such experiment.
    """
    options = next((run.data.options for run in plan.runs if run.experiment == experiment), None)
    if options is None:
        raise ValueError(f"no experiment {experiment}")
    # places do not depend on the digits: two blank ones of different classes do
    blank = Raw(np.zeros((2, 1, FRAME, FRAME), dtype=np.uint8), np.arange(2))
    overlaps = Pairs(blank, options, options.test_pairs, torch.device("cpu")).frame_overlap(BOX).numpy()
    return np.searchsorted(np.quantile(overlaps, [0.25, 0.5, 0.75]), overlaps, side="left")


def by_seed(right: dict[str, np.ndarray], experiment: str, variant: str, quarters: np.ndarray) -> dict[str, np.ndarray]:
    """Return the error in % in each quarter, [4], by seed, of the runs whose bits a reference has."""
    start = f"{experiment}/{variant}/"
    return {
        key.removeprefix(start): np.array([100 * (~bits[quarters == part]).mean() for part in range(len(PARTS))])
        for key, bits in right.items()
        if key.startswith(start)
    }


def _text(first: np.ndarray, second: np.ndarray) -> str:
    return difference_text(summarise_pairs(list(first), list(second)))
