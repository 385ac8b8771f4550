"""Numbers as people read them."""

import math

import pytest
from studies import text_of

from capsbench.analysis.tables.text import duration_text, interval_text, mean_text, number_text, precision_lines


@pytest.mark.parametrize(
    ("ends", "ours", "n"),
    [
        ([1.0, 1.5, 2.0], "1.50 ± 0.50", "3 of 3"),
        ([1.0, 1.5, "diverged"], "1.25 ± 0.35", "2 of 3, 1 diverged"),
        ([1.0, "diverged", "failed"], "1.00", "1 of 3, 1 diverged, 1 failed"),
        ([1.0, "running", "missing"], "1.00", "1 of 3"),
        (["failed", "failed", "failed"], "failed", "0 of 3, 3 failed"),
        (["diverged", "diverged", "diverged"], "diverged", "0 of 3, 3 diverged"),
        (["diverged", "failed", "missing"], "failed", "0 of 3, 1 diverged, 1 failed"),
        (["running", "missing", "missing"], "-", "0 of 3"),
    ],
)
def test_text_of_a_cell_says_what_became_of_its_runs(plan, table_of, ends, ours, n):
    row = text_of(table_of(plan, ends + ["missing"] * 6)).iloc[0]
    assert (row.iloc[3], row["n"]) == (ours, n)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (7260, "2 h 1 min"), (math.nan, "-")],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_what_is_not_known_is_a_dash():
    assert mean_text(math.nan) == interval_text(math.nan, math.nan) == number_text(math.nan, ".1f") == "-"
    assert (mean_text(1.0), mean_text(1.0, 0.5)) == ("1.00", "1.00 ± 0.50")
    assert interval_text(0.1, 0.256) == "[0.10, 0.26]"


@pytest.mark.parametrize(
    ("precisions", "lines"),
    [
        ({"a": "float32", "b": "float32"}, []),
        ({"a": "tf32", "b": "tf32"}, ["All were trained in TF32."]),
        ({"a": "tf32"}, ["Trained in TF32: a."]),
        (
            {"a": "tf32", "b": "float32", "c": "bfloat16", "d": "tf32"},
            ["Trained with convolutions in bfloat16: c.", "Trained in TF32: a, d."],
        ),
    ],
)
def test_a_precision_is_said_in_one_line(precisions, lines):
    assert precision_lines(precisions) == lines
