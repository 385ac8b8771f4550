"""docs/overlap.py: differences on pairs of digits by how much the digits overlap, from the bits of a reference."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import capsbench
from capsbench.analysis.correct_bits import read_correct
from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.pairs import PairOptions, Pairs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from contrasted import read_contrasts  # noqa: E402
from overlap import by_seed, overlap, quarters_of_overlap  # noqa: E402

REFERENCE = ROOT / "results/reference"


@pytest.fixture(scope="module")
def quarters():
    return quarters_of_overlap(capsbench.load_study(REFERENCE / "cpu/study.yaml"), "multimnist")


def test_quarters_hold_a_quarter_each_but_for_ties(quarters):
    assert len(quarters) == 10_000
    assert all(0.2 < share < 0.3 for share in np.bincount(quarters, minlength=4) / len(quarters))


def test_a_later_quarter_has_more_overlap(quarters):
    """Counted in the pictures of pairs of white squares, in place of computed from their places."""
    images = np.zeros((2, 1, 28, 28), dtype=np.uint8)
    images[:, :, 4:24, 4:24] = 255
    pairs = Pairs(Raw(images, np.arange(2)), PairOptions(), 10_000, torch.device("cpu"))
    _, sources = pairs.eval_images(torch.arange(10_000))  # [N, 2, 1, 36, 36]
    shared = (sources > 0).all(dim=1).flatten(1).sum(dim=1).numpy()
    ends = [(shared[quarters == part].min(), shared[quarters == part].max()) for part in range(4)]
    assert all(most < least for (_, most), (least, _) in pairwise(ends))


def test_quarters_give_back_the_error_of_each_run(quarters):
    right = read_correct(REFERENCE / "cpu/correct.npz").right
    sizes = np.bincount(quarters)
    found = by_seed(right, "multimnist", "cnn_matched", quarters)
    assert len(found) == 5
    for seed, errors in found.items():
        whole = 100 * (~right[f"multimnist/cnn_matched/{seed}"]).mean()
        assert errors @ sizes / sizes.sum() == pytest.approx(whole)


def test_a_network_that_errs_where_digits_overlap_differs_there_alone(quarters):
    bits = {f"multimnist/{name}/seed{seed}": np.ones(10_000, dtype=bool) for name in "ab" for seed in range(3)}
    for seed in range(3):
        bits[f"multimnist/a/seed{seed}"][quarters == 3] = False
    errors = by_seed(bits, "multimnist", "a", quarters)
    assert all(list(of_seed) == [0, 0, 0, 100] for of_seed in errors.values()) and len(errors) == 3


def test_rows_are_the_contrasts_of_the_families_in_the_experiment():
    _, _, *rows = overlap(REFERENCE, "cpu", "multimnist", "overlapping_digits").splitlines()
    declared = read_contrasts(REFERENCE, "cpu").query("family == 'overlapping_digits' and experiment == 'multimnist'")
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(declared["contrast"])
    # the mean of the four quarters is near the difference over all pairs
    for row, whole in zip(rows, declared["mean"], strict=True):
        cells = [cell.split()[0].replace("−", "-") for cell in row.split(" | ")[1:5]]
        assert all(re.fullmatch(r"[+-]\d+\.\d+", cell) for cell in cells)
        assert np.mean([float(cell) for cell in cells]) == pytest.approx(whole, abs=0.3)


def test_an_unknown_experiment_or_family_is_refused():
    with pytest.raises(ValueError, match="no experiment other"):
        overlap(REFERENCE, "cpu", "other", "overlapping_digits")
    with pytest.raises(ValueError, match="no family"):
        overlap(REFERENCE, "cpu", "multimnist", "other")
    with pytest.raises(ValueError, match="no contrast"):
        overlap(REFERENCE, "cpu", "multimnist", "matrix_capsules_on_affine_digits")
