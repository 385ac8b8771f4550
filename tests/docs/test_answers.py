"""docs/answers.py: answers are filled from contrasts, and stop the generator where they say something else."""

import re
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import answers  # noqa: E402
import generate  # noqa: E402
from answers import Contrast, Question  # noqa: E402

COLUMNS = "contrast,data_set,n,mean,low,high,p_holm,margin,p_same,differences,unofficial,stuck,at_chance\n"
ROWS = (
    "higher,mnist,3,1.0,0.5,1.5,0.01,1.2,0.9,0: 0.8; 1: 1.0; 2: 1.2,,,0\n"
    "lower,mnist,3,-1.0,-1.5,-0.5,0.01,1.2,0.9,0: -0.8; 1: -1.0; 2: -1.2,,,0\n"
    "lower,smallnorb,3,-1.0,-1.5,-0.5,0.06,1.2,0.9,0: -0.8; 1: -1.0; 2: -1.2,smallNORB (JPEG-75 copy): a: md5 1,,0\n"
    "none,mnist,3,0.1,-0.4,0.6,0.5,1.2,0.2,0: 0.0; 1: 0.1; 2: 0.2,,,0\n"
    "same,mnist,3,0.1,-0.2,0.4,0.3,1.2,0.02,0: 0.0; 1: 0.1; 2: 0.2,,,0\n"
    "chance,mnist,3,50.0,49.0,51.0,0.01,1.2,0.9,0: 49; 1: 50; 2: 51,,x stayed at chance,3\n"
    "few,mnist,1,1.0,,,,,,0: 1.0,,,0\n"
)


@pytest.fixture
def reference(tmp_path):
    folder = tmp_path / "results/reference/tiny/tables"
    folder.mkdir(parents=True)
    (folder / "contrasts.csv").write_text(COLUMNS + ROWS)
    return tmp_path / "results/reference"


def ask(monkeypatch, answer, more="", also="", brief="In short.", rows=None):
    named = {name: Contrast("tiny", name) for name in ("higher", "lower", "none", "same", "chance", "few")}
    question = Question("Why?", "Reasons", brief, answer, named, more, also, rows or {})
    monkeypatch.setattr(answers, "QUESTIONS", (question,))


def test_an_answer_has_the_intervals_of_its_contrasts(reference, monkeypatch):
    ask(
        monkeypatch,
        "By {higher@mnist>}, by {lower@mnist<}, perhaps by {lower@smallnorb<?}, none {none@mnist=}, "
        "the same {same@mnist~}.",
        also="{lower@mnist<} {none@mnist=} {chance@mnist!}",
    )
    assert answers.answers(reference, "tiny") == (
        "- **Why?** By 0.50 to 1.50, by 0.50 to 1.50, perhaps by 0.50 to 1.50, none [−0.40, +0.60], "
        "the same [−0.20, +0.40; ±1.2]."
    )


def test_a_brief_answer_has_words_alone_and_the_full_one_a_list(reference, monkeypatch):
    ask(monkeypatch, "By {higher@mnist>}.", more="Else {none@mnist=}.\nEnd.")
    assert answers.answers(reference, "tiny", "brief") == "- **Why?** In short."
    assert answers.answers(reference, "tiny") == "- **Why?** By 0.50 to 1.50.\n    - Else [−0.40, +0.60].\n    - End."


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("{higher@mnist<}", "shows a higher error, and the answer to 'Why\\?' says a lower error"),
        ("{higher@mnist=}", "shows a higher error, and the answer to 'Why\\?' says no difference"),
        ("{lower@smallnorb<}", "shows a lower error that does not hold after Holm's correction"),
        ("{none@mnist>}", "shows no difference"),
        ("{none@mnist>?}", "shows no difference"),
        ("{chance@mnist>}", "shows nothing: a network stayed at chance"),
        ("{chance@mnist=}", "shows nothing: a network stayed at chance"),
        (
            "{higher@mnist!}",
            "shows a higher error, and the answer to 'Why\\?' says nothing: a network stayed at chance",
        ),
        ("{few@mnist=}", "shows nothing: there are too few seeds"),
        ("{higher@smallnorb>}", "no result of 'higher' on smallnorb in tiny"),
        ("{higher@mnist}", "{higher@mnist} in the answer to 'Why\\?' is no place"),
    ],
)
@pytest.mark.parametrize("where", ["answer", "more", "also"])
@pytest.mark.parametrize("form", [(), ("brief",), ("table",)])
def test_an_answer_that_its_contrasts_do_not_show_is_refused(reference, monkeypatch, place, words, where, form):
    ask(monkeypatch, **{"answer": "Yes.", where: place})
    with pytest.raises(ValueError, match=words):
        answers.answers(reference, "tiny", *form)


@pytest.mark.parametrize("where", ["answer", "more"])
def test_a_difference_from_a_network_at_chance_is_not_printed(reference, monkeypatch, where):
    ask(monkeypatch, **{"answer": "Yes.", where: "By {chance@mnist!}."})
    with pytest.raises(ValueError, match="'chance' on mnist: a network stayed at chance; do not print it"):
        answers.answers(reference, "tiny")


def test_a_block_names_the_studies_that_its_answers_come_from(reference, monkeypatch):
    ask(monkeypatch, "Yes.")
    with pytest.raises(ValueError, match="the answers are from tiny"):
        answers.answers(reference)
    with pytest.raises(ValueError, match="the answers are from tiny"):
        answers.answers(reference, "brief")


def test_the_table_has_a_row_per_comparison_and_a_column_per_data_set(reference, monkeypatch):
    ask(monkeypatch, "Yes.", rows={"one": "higher@mnist lower@smallnorb", "other": "same@mnist"})
    assert answers.answers(reference, "tiny", "table").replace("\u00a0", "_").splitlines() == [
        "| error of the first minus that of the second | MNIST | smallNORB (JPEG-75 copy) |",
        "|---|---|---|",
        "| **Reasons** |  |  |",
        "| one | **+1.00 [+0.50,_+1.50]** (n=3) | −1.00 [−1.50,_−0.50] (n=3) |",
        "| other | ≈_+0.10 [−0.20,_+0.40] (n=3) |  |",
    ]
    ask(monkeypatch, "Yes.", rows={"one": "higher@smallnorb"})
    with pytest.raises(ValueError, match="no result of 'higher' on smallnorb"):
        answers.answers(reference, "tiny", "table")


def test_a_cell_has_the_dagger_that_its_row_declares(reference, monkeypatch):
    path = reference / "tiny/tables/contrasts.csv"
    path.write_text(path.read_text().replace(",3,", ",5,"))
    ask(monkeypatch, "Yes.", rows={"one": "same@mnist", "two": "higher@mnist†"})
    assert answers.answers(reference, "tiny", "table").replace("\u00a0", "_").splitlines()[-2:] == [
        "| one | ≈_+0.10 [−0.20,_+0.40] |",
        "| two | **+1.00 [+0.50,_+1.50]**† |",
    ]
    _, ((_, one, two),) = answers._rows(answers._read(reference))
    assert (one.mark, two.mark) == ("", "†")


def test_a_contrast_that_two_experiments_have_is_refused(reference, monkeypatch):
    path = reference / "tiny/tables/contrasts.csv"
    path.write_text(path.read_text() + ROWS.splitlines()[0] + "\n")
    ask(monkeypatch, "{higher@mnist>}")
    with pytest.raises(ValueError, match="2 results of 'higher' on mnist in tiny"):
        answers.answers(reference, "tiny")


def test_the_figure_has_a_panel_per_data_set_and_the_rows_of_the_table(reference, monkeypatch):
    ask(monkeypatch, "Yes.", rows={"one": "lower@mnist lower@smallnorb", "two": "same@mnist", "three": "none@mnist"})
    titles, (mnist, norb) = answers._rows(answers._read(reference))
    assert titles == ["MNIST", "smallNORB (JPEG-75 copy)"]
    assert [row.name for row in mnist] == [row.name for row in norb] == ["Reasons", "one", "two", "three"]
    assert mnist[0].heading
    assert [row.filled for row in mnist[1:]] == [True, False, False]
    assert [row.name for row in mnist if row.same] == ["two"]
    assert mnist[1].points == [-0.8, -1.0, -1.2]
    assert (norb[1].extent, norb[2].extent) == ([-1.0, -1.5, -0.5, -0.8, -1.0, -1.2], [])
    assert not norb[1].filled  # not after Holm's correction


def test_the_figure_is_drawn_anew_where_its_numbers_have_changed(reference, monkeypatch, capsys):
    ask(monkeypatch, "Yes.", rows={"one": "higher@mnist"})
    root = reference.parents[1]
    (root / "docs").mkdir()
    (root / "README.md").write_text("<!-- begin answers tiny -->\n<!-- end answers -->\n")
    picture = root / "docs/answers.png"
    assert generate.main(["--root", str(root), "--check"]) == 1
    assert "docs/answers.png: is stale" in capsys.readouterr().out
    assert not picture.exists()
    assert generate.main(["--root", str(root)]) == 0
    assert Image.open(picture).width > 1000
    assert [path.name for path in picture.parent.iterdir()] == ["answers.png"]
    capsys.readouterr()
    assert generate.main(["--root", str(root), "--check"]) == 0
    path = reference / "tiny/tables/contrasts.csv"
    path.write_text(path.read_text().replace("1: 1.0", "1: 1.1"))
    drawn = picture.read_bytes()
    assert generate.main(["--root", str(root), "--check"]) == 1
    assert capsys.readouterr().out == "docs/answers.png: is stale; run python docs/generate.py\n"
    assert picture.read_bytes() == drawn
    assert generate.main(["--root", str(root)]) == 0
    assert picture.read_bytes() != drawn


def test_every_contrast_of_a_question_is_one_that_a_study_declares():
    found = answers._read(ROOT / "results/reference")
    for question in answers.QUESTIONS:
        assert not re.search(r"[{}0-9]\.\d|[{}]", question.brief)  # its numbers would not be checked
        assert len(question.brief.split()) <= 95, question.asks  # the first page is read at a glance
        keys = {place["key"] for place in answers.PLACE.finditer(question.answer + question.more + question.also)}
        assert keys == set(question.contrasts), question.asks
        for contrast in question.contrasts.values():
            assert contrast.name in set(found[contrast.study]["contrast"])
