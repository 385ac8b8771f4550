"""The files of a table, and what they say of data files that are not official."""

import re
from csv import reader

import pytest
from studies import FULL, ours_of

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import caption, for_people, notes, paper_table, write_table

FILES = ("smallNORB (JPEG-75 copy): train-dat.mat: md5 12, the official file's is 34", "test-dat.mat: md5 5, not 6")
NOT_OFFICIAL = "not the official files (runs.csv has their checksums): "
CAVEAT = "Remarks on published values: 0.25 ± 0.005: what public code reaches is 0.25 to 0.40."


@pytest.fixture
def written(plan, table_of, results):
    """The three files of one table: csv, md, tex."""
    table = table_of(plan, [1.0, 1.5, "diverged", *["failed"] * 3, *["missing"] * 3])
    paths = write_table(table, "sabour-table1", results / "tables", caption("sabour-table1", plan))
    assert [path.name for path in paths] == [f"sabour-table1.{ending}" for ending in ("csv", "md", "tex")]
    return table, *paths


def test_csv_holds_numbers_in_full(written):
    table, path, *_ = written
    heading, *rows = list(reader(path.read_text(encoding="utf-8").splitlines()))
    read = [dict(zip(heading, row, strict=True)) for row in rows]
    assert heading == list(table.columns)
    assert [row["mean"] for row in read] == ["1.25", "", ""]
    assert float(read[0]["std"]) == table.loc[0, "std"]
    assert [row["failed"] for row in read] == ["0", "3", "0"]


def test_markdown_holds_every_row_and_says_how_to_read_it(written):
    _, _, markdown, _ = written
    lines = markdown.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    ours = rows[0].index("ours (error %)")
    assert [row[ours] for row in rows[2:]] == ["1.25 ± 0.35", "failed", "-"]
    below = [line for line in lines if line and not line.startswith("|")]
    assert below[0].startswith("Study 'small_study'. Test error in %")
    assert below[1:] == ["(a) digits is not mnist; 20 steps, not 300,000 or more.", CAVEAT]


def test_latex_is_escaped_and_ruled(written):
    latex = written[3].read_text(encoding="utf-8")
    body = latex.split("\n", 1)[1]  # the first line is a comment
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\label{tab:sabour-table1}"):
        assert body.count(rule) == 1
    assert r"Study 'small\_study'. Test error in \%" in body
    assert r"ours (error \%)" in body
    assert r"1.25 $\pm$ 0.35" in body
    assert "±" not in body
    assert body.count("%") == body.count(r"\%")
    assert body.count("_") == body.count(r"\_")


def test_a_line_about_files_appears_once_though_seeds_differ(make_plan, write_run, results):
    plan = make_plan(FULL)
    for run, lines in zip(plan.runs, [(), FILES, FILES[1:]], strict=True):
        write_run(run, error=0.2, unofficial=lines)
    table = ours_of(paper_table("sabour-table1", plan, collect(plan, results)))
    assert table.loc[0, "unofficial"] == "; ".join(FILES)


@pytest.fixture
def unofficial(make_plan, write_run, results):
    """Three rows: of unofficial files; of the official ones; of another unofficial file. Table, csv, md, tex."""
    plan = make_plan(
        FULL + "  r1: {model: capsnet, options: {routing: {iterations: 1}}}\n  cnn: {model: cnn_sabour_mnist}\n"
    )
    for run in plan.runs:
        lines = {"capsnet": FILES, "r1": (), "cnn": FILES[1:]}[run.variant]
        write_run(run, error=0.2 + run.seed / 100, unofficial=lines)
    table = ours_of(paper_table("sabour-table1", plan, collect(plan, results)))
    return table, *write_table(table, "sabour-table1", results / "tables", caption("sabour-table1", plan))


def test_rows_of_unofficial_files_carry_a_dagger_and_are_not_comparable(unofficial):
    table = unofficial[0]
    text = for_people(table)
    assert list(text["data"]) == ["mnist†", "mnist", "mnist‡"]
    assert list(table["verdict"].str.contains("not the official files")) == [True, False, True]
    assert list(text["verdict"]) == ["not comparable (a)", "missed: lower by 0.08", "not comparable (a)"]
    assert notes(table)[:3] == [
        "(a) not the official files.",
        f"† {NOT_OFFICIAL}smallNORB (JPEG-75 copy): train-dat.mat, test-dat.mat.",
        f"‡ {NOT_OFFICIAL}test-dat.mat.",
    ]


def test_unofficial_files_are_named_in_every_file_of_a_table(unofficial):
    _, csv, markdown, latex = unofficial
    rows = list(reader(csv.read_text(encoding="utf-8").splitlines()))
    lines, verdict = rows[0].index("unofficial"), rows[0].index("verdict")
    assert [row[lines] for row in rows[1:]] == ["; ".join(FILES), "", FILES[1]]
    assert rows[1][verdict] == "not comparable: not the official files"

    text = markdown.read_text(encoding="utf-8")
    assert re.findall(r"^\| (mnist\S*)", text, re.MULTILINE) == ["mnist†", "mnist", "mnist‡"]
    assert f"\n† {NOT_OFFICIAL}smallNORB (JPEG-75 copy): train-dat.mat, test-dat.mat.\n" in text
    assert "\n(a) not the official files.\n" in text

    text = latex.read_text(encoding="utf-8")
    assert re.findall(r"^(mnist\S*) &", text, re.MULTILINE) == [r"mnist$\dagger$", "mnist", r"mnist$\ddagger$"]
    assert rf"$\dagger$ {NOT_OFFICIAL}smallNORB (JPEG-75 copy): train-dat.mat, test-dat.mat." in text
    assert "(a) not the official files." in text
    assert {"†", "‡", "±"}.isdisjoint(text)
