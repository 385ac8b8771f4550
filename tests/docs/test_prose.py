"""docs/prose.py: which differences of the prose are found, and which have no contrast."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402
import prose  # noqa: E402

FOUND = {("-3.36", "-2.08"), ("-3.4", "-2.1"), ("-3", "-2")}


def lines(text):
    return list(prose.unfounded(text, FOUND))


@pytest.mark.parametrize(
    "sentence",
    ["Lower [−3.36, −2.08].", "2.1 to 3.4 points lower.", "Lower by\n2.1 to 3.4.", "It is 2.1 to 3.4 ahead.",
     "The same [−3.4, −2.1; ±0.4]."],
)  # fmt: skip
def test_an_interval_of_a_contrast_is_founded_whatever_its_direction(sentence):
    assert lines(sentence) == []


@pytest.mark.parametrize(
    ("sentence", "words"),
    [("Lower [−3.35, −2.08].", "[−3.35, −2.08]"), ("2.1 to 3.5 points lower.", "2.1 to 3.5 points"),
     ("Lower by\n2.0 to 3.4.", "by 2.0 to 3.4"), ("It is 2.1 to 3.3 ahead.", "2.1 to 3.3 ahead"),
     ("[+2.08, +3.37; ±0.4]", "[+2.08, +3.37; ±0.4]")],
)  # fmt: skip
def test_another_interval_is_not(sentence, words):
    assert lines(f"One.\n\nTwo. {sentence}") == [(3, words)]


@pytest.mark.parametrize(
    "sentence",
    ["Each seed is 4.0 to 5.0 points lower.", "Lower by 4.0 to 5.0 points (by hand).",
     "It errs on 4.0 to 5.0 % of them.", "Lengths [0.1, 0.9]."],
)  # fmt: skip
def test_ranges_of_other_things_are_passed_over_to_the_end_of_their_sentence(sentence):
    assert lines(sentence) == []
    assert lines(f"{sentence} It is 4.0 to 5.0 ahead.") == [(1, "4.0 to 5.0 ahead")]


def test_blocks_are_not_prose_but_their_intervals_count(tmp_path):
    page = (
        "<!-- begin fit a -->\n\n+1.00 [+0.50, +1.50]\n\n<!-- end fit -->\nLower [+0.50, +1.50] and [+0.40, +1.50].\n"
    )
    assert list(prose.unfounded(page, prose.intervals(tmp_path, [page]))) == [(6, "[+0.40, +1.50]")]


def test_the_generator_names_what_has_no_contrast(tmp_path, capsys):
    folder = tmp_path / "results/reference/tiny/tables"
    folder.mkdir(parents=True)
    (folder / "contrasts.csv").write_text("contrast,low,high\na against b,-3.36,-2.08\nc,,\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("It is 2.1 to 3.4 points lower [−3.36, −2.08].\n")
    assert generate.main(["--root", str(tmp_path)]) == 0
    (folder / "contrasts.csv").write_text("contrast,low,high\na against b,-3.46,-2.08\n")
    assert generate.main(["--root", str(tmp_path)]) == generate.main(["--root", str(tmp_path), "--check"]) == 1
    told = capsys.readouterr().out
    assert "README.md:1: '[−3.36, −2.08]' is the interval of no committed contrast" in told
    assert "README.md:1: '2.1 to 3.4 points'" in told
