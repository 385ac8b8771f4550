"""docs/claimed.py on claims that are written by hand."""

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from claimed import claimed

COLUMNS = (
    "claim", "paper", "wording", "expected", "published_difference", "unit", "experiment", "n", "planned", "mean",
    "low", "high", "margin", "here", "why",
)  # fmt: skip
LOWER = ("first", "S17", "A is better than B.", "lower", -0.3, "points")
SAME = ("second", "H18", "A and B are alike.", "same", None, "points")
SHARE = ("third", "H18", "A makes fewer errors.", "lower", -30.0, "percent")
FOURTH = ("fourth", "H18", "A is lower.", "lower", -1.0, "points")
ROWS = [
    (*LOWER, "digits", 5, 5, -1.5, -2.0, -1.0, None, "as claimed", None),
    (*LOWER, "mnist", 4, 5, 0.25, -0.5, 1.0, None, "undecided", None),
    (*SAME, "digits", 5, 5, 0.1, -0.2, 0.4, 0.9, "as claimed", None),
    (*SAME, "affnist-generated", 0, 5, None, None, None, None, None, None),
    (*SHARE, "toynorb", 5, 5, 3.0, 1.0, 5.0, None, "undecided", "not after Holm's correction for 3 tests (p = 0.2)"),
    (*SHARE, "toynorb-azimuth", 5, 5, 0.0, None, None, None, "undecided", "identical in all five seeds"),
    (*FOURTH, "toynorb", 1, 5, -2.0, None, None, None, "undecided", None),
    (*FOURTH, "digits", 5, 5, -3.2, -4.0, -2.4, None, "undecided", "one side stayed at chance"),
]


@pytest.fixture
def lines(tmp_path) -> list[str]:
    folder = tmp_path / "small/tables"
    folder.mkdir(parents=True)
    pd.DataFrame(ROWS, columns=COLUMNS).to_csv(folder / "claims.csv", index=False)
    return claimed(tmp_path, "small").splitlines()


def test_a_claim_is_a_row_with_what_was_found_on_either_kind_of_data(lines):
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert rows[0] == ["claim", "paper", "on stand-ins", "on MNIST and what is made of it"]
    assert rows[1] == [
        "A is better than B (S17)", "−0.3", "**as claimed**: −1.50 [−2.00, −1.00]",
        "undecided: +0.25 [−0.50, +1.00], 4 of 5 seeds",
    ]  # fmt: skip
    assert rows[2] == [
        "A and B are alike (H18)",
        "the same",
        "**as claimed**: +0.10 [−0.20, +0.40], margin 0.9",
        "not run",
    ]
    assert rows[3][:2] == ["A makes fewer errors (H18)", "−30 %"]
    assert rows[3][2] == ("undecided after Holm's correction: +3.00 [+1.00, +5.00]<br>undecided: equal in every seed")
    assert rows[4][2] == "undecided: fewer than three seeds, 1 of 5 seeds<br>undecided: one side stayed at chance"


def test_in_brief_it_lists_what_was_decided(lines, tmp_path):
    said, below = claimed(tmp_path, "small", "brief").rsplit("\n\n", 1)
    assert below.startswith("Points of test error, the first network minus the second: mean over 1 to 5 seeds")
    assert said == (
        "**7 tests of 4 claims: 2 as claimed and 5 undecided.**\n\nAs claimed:\n\n"
        "- A is better than B (S17): −1.50 [−2.00, −1.00] on handwritten digits of scikit-learn.\n"
        "- A and B are alike (H18): +0.10 [−0.20, +0.40], margin 0.9 on handwritten digits of scikit-learn."
    )


def test_in_brief_a_claim_with_either_outcome_stands_once(tmp_path):
    folder = tmp_path / "small/tables"
    folder.mkdir(parents=True)
    opposite = (*SAME, "mnist", 5, 5, 0.3, 0.2, 0.4, 0.05, "the opposite", None)
    pd.DataFrame([*ROWS, opposite], columns=COLUMNS).to_csv(folder / "claims.csv", index=False)
    said = claimed(tmp_path, "small", "brief")
    assert said.count("A and B are alike") == 1
    assert (
        "Verdicts that differ by data set and margin:\n\n- A and B are alike (H18): "
        "as claimed with +0.10 [−0.20, +0.40], margin 0.9 on handwritten digits of scikit-learn; "
        "the opposite with +0.30 [+0.20, +0.40], margin 0.05 on MNIST."
    ) in said
    assert "\nThe opposite:" not in said


def test_what_came_out_is_counted(lines):
    assert lines[0] == "**7 tests of 4 claims: 2 as claimed and 5 undecided.**"
    assert "1 to 5 seeds" in "\n".join(lines)
    assert "(../../results/reference/small/tables/claims.md)" in "\n".join(lines)
