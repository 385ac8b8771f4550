"""What MLflow says a study shows: from its tables, in Markdown that MLflow takes."""

from capsbench.run.store_contents import answers_note


def test_the_note_of_a_study_says_what_it_shows(tmp_path):
    assert answers_note(tmp_path) == ""
    (tmp_path / "tables").mkdir()
    contrasts = tmp_path / "tables/contrasts.csv"
    contrasts.write_text("contrast,data_set,shows\nEM against dynamic,digits,no difference was shown\n")
    assert answers_note(tmp_path) == "- EM against dynamic (digits): no difference was shown"
    contrasts.write_text("contrast,data_set,shows\n" + "a,b,c\n" * 16)
    assert answers_note(tmp_path) == ""
    lines = [
        "question,row,outcome,experiment,data_set",
        "Is it?,EM | 3,+0.74,a,digits",
        "Is it?,EM | 3,undecided,b,pairs",
        "And?,all,≈ 0.1,b,pairs",
    ]
    questions = tmp_path / "tables/questions.csv"
    questions.write_text("\n".join(lines), encoding="utf-8")
    assert answers_note(tmp_path).splitlines()[3:] == [
        "| | digits | pairs |", "|--|--|--|", "| **Is it?** | | |", r"| EM \| 3 | +0.74 | undecided |",
        "| **And?** | | |", "| all |  | ≈ 0.1 |",
    ]  # fmt: skip
    questions.write_text("\n".join(lines).replace("pairs", "digits"), encoding="utf-8")
    assert answers_note(tmp_path).splitlines()[3] == "| | a | b |"  # two experiments on one data set
    more = [f"Is it?,row {n} {'x' * 100},+0.74,a,digits" for n in range(200)]
    questions.write_text("\n".join([*lines, *more]), encoding="utf-8")
    note = answers_note(tmp_path, 5000)
    assert 4800 < len(note) <= 5000
    assert note.endswith("More is in the tables, which are artifacts of this run.")
