"""docs/starts.py: what errors owe to first weights and to order, on made-up runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import f_oneway

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import starts  # noqa: E402
from findings import read_runs  # noqa: E402

NOISE = np.random.default_rng(0).normal(size=(5, 5))


def test_the_variance_is_that_of_a_least_squares_fit():
    errors = NOISE + 3 * np.arange(5)[:, None]
    rows, columns = np.indices(errors.shape)
    one_hot = np.hstack([np.ones((25, 1)), np.eye(5)[rows.ravel()], np.eye(5)[columns.ravel()]])
    left = []  # squares that a mean leaves, then rows, columns, and both
    for kept in ([0], [*range(6)], [0, *range(6, 11)], [*range(11)]):
        fitted = np.linalg.lstsq(one_hot[:, kept], errors.ravel(), rcond=None)[0]
        left.append(float(((errors.ravel() - one_hot[:, kept] @ fitted) ** 2).sum()))
    by_row, by_column = starts.two_factors(errors)
    assert by_row.share == pytest.approx(1 - left[1] / left[0])
    assert by_column.share == pytest.approx(1 - left[2] / left[0])
    assert 1 - by_row.share - by_column.share == pytest.approx(left[3] / left[0])
    assert by_row.apart == pytest.approx(np.ptp(errors.mean(axis=1)))
    assert by_row.p < 1e-6 < 0.05 < by_column.p


def test_without_a_column_effect_the_test_is_nearly_that_of_one_factor():
    errors = NOISE - NOISE.mean(axis=0)
    by_row, by_column = starts.two_factors(errors)
    assert by_column.share == pytest.approx(0)
    statistic = f_oneway(*errors).statistic * 16 / 20  # whose rest has 20 degrees of freedom, not 16
    assert by_row.p == pytest.approx(starts.f_distribution.sf(statistic, 4, 16))


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Return the table of made-up errors [start, seed] of one network, half as many in training, but for the first."""

    def errors_of(reference, study):
        runs = read_runs(reference, study)
        first = (runs["option.start"] == 0) & (runs["seed"] == 0)
        return runs.assign(test=runs["test_error"], train=(runs["test_error"] / 2).where(~first, 0))

    monkeypatch.setattr(starts, "errors_of", errors_of)

    def lines(errors):
        rows = [
            {"experiment": "mnist", "variant": f"a-b-start{start}", "label": f"Net, two, start {start}", "seed": seed,
             "status": "ok", "test_error": error, "option.start": start, "unofficial": None}
            for (start, seed), error in np.ndenumerate(errors)
            if not np.isnan(error)
        ]  # fmt: skip
        (tmp_path / "tiny").mkdir(exist_ok=True)
        pd.DataFrame(rows).sample(frac=1, random_state=0).to_csv(tmp_path / "tiny/runs.csv", index=False)
        return starts.starts(tmp_path, "tiny").splitlines()

    return lines


def test_rows_are_starts_and_columns_orders(page):
    starts_apart = 20 + NOISE / 10 + 2 * np.arange(5)[:, None]
    cells = page(starts_apart)[2].split(" | ")
    assert cells[:2] == ["| MNIST", "Net, two"]
    assert cells[3].endswith("(p < 0.001)")
    assert float(cells[3].split()[0]) == pytest.approx(8, abs=0.3)
    assert cells[5].startswith(("starts 99 %, orders 0 %", "starts 100 %, orders 0 %"))
    expected = (20 + NOISE / 10 + 2 * np.arange(5)[:, None]).ravel()
    in_training = np.where(np.arange(25) == 0, 0, expected / 2)
    assert cells[6] == f"{np.corrcoef(expected, in_training)[0, 1]:.2f} |"
    turned = page(starts_apart.T)[2].split(" | ")
    assert (turned[3], turned[4]) == (cells[4], cells[3])
    said = "After Holm's correction for the 2 tests of whole networks p is below 0.05 for"
    assert page(starts_apart)[-1].startswith(f"{said} starts of Net, two on MNIST (p < 0.001).")
    assert page(starts_apart.T)[-1].startswith(f"{said} orders of Net, two on MNIST (p < 0.001).")
    assert page(20 + NOISE)[-1].startswith(f"{said} none; it is smallest for ")


def test_a_start_without_a_seed_is_refused(page):
    errors = NOISE + 20
    errors[2, 3] = np.nan
    with pytest.raises(ValueError, match=r"tiny/mnist/a-b has no error for one of its starts at one of its seeds"):
        page(errors)


def _row(wrong):
    return [wrong, 20 - wrong]


def test_a_class_has_a_row_of_its_own(page, tmp_path):
    errors = 20 + NOISE / 10
    page(errors)
    found = tmp_path / "tiny/runs.csv"
    runs = pd.read_csv(found)
    runs.assign(key=runs["variant"] + runs["seed"].astype(str)).to_csv(found, index=False)
    matrices = {
        f"a-b-start{start}{seed}": {
            "confusion": {"classes": ["3", "5"], "matrix": [[9, 1], _row(2 * start + (seed == start))]}
        }
        for start in range(5)
        for seed in range(5)
    }
    (tmp_path / "tiny/measures.json").write_text(json.dumps(matrices))
    whole, alone, *_ = starts.starts(tmp_path, "tiny", "mnist=5", "digits=5").splitlines()[2:]
    assert whole.startswith("| MNIST | Net, two | 19.8 to 20.1 | ")
    assert alone.startswith("| MNIST | Net, two: class 5 alone | 0.0 to 45.0 | 40.0 (p < 0.001) | ")
    assert alone.endswith("starts 98 %, orders 0 %, neither alone 2 % |  |")
    with pytest.raises(ValueError, match="'7' is not in list"):
        starts.starts(tmp_path, "tiny", "mnist=7")


def test_the_pairs_of_classes_are_named_that_differ_most_between_runs(page, tmp_path):
    """The more fives a run takes for threes, the fewer threes for fives; sixes are right, but for one in one run."""
    page(20 + NOISE)
    found = tmp_path / "tiny/runs.csv"
    runs = pd.read_csv(found)
    runs.assign(key=runs["variant"] + runs["seed"].astype(str)).to_csv(found, index=False)
    measures = {
        key: {
            "confusion": {
                "classes": ["3", "5", "6"],
                "matrix": [[1 + seed, 9 - seed, 0], [2 * seed, 10 - 2 * seed, 0], [0, int(key[-2:] == "00"), 9]],
            }
        }
        for key, seed in zip(runs["variant"] + runs["seed"].astype(str), runs["seed"], strict=True)
    }
    (tmp_path / "tiny/measures.json").write_text(json.dumps(measures))
    (row,) = starts.taken_for(tmp_path, "tiny", "mnist").splitlines()[2:]
    pairs = "5 for 3 0 to 80 %, 3 for 5 50 to 90 %, 6 for 5 0 to 10 %"
    assert row == f"| MNIST | Net, two | 25 | {pairs} | −1.00 |"
