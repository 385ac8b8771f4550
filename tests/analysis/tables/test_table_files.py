"""The files of tables: csv, Markdown, and LaTeX that pdflatex sets without an overfull box."""

import re
import shutil
import subprocess
from csv import DictReader

import pandas as pd
import pytest
from studies import NOVEL

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import Grid, Row, Table, write_table, write_tables
from capsbench.analysis.tables.latex import escape, latex
from capsbench.analysis.tables.text import MISSING

EVERY_TABLE = """\
name: every_table
seeds: [0, 1, 2]
training: {epochs: 2}
tables:
  - {name: own_one, title: "a_b & 5 % of C#", rows: ["caps*", cnn], columns: [digits, views], contrasts: [iterations]}
contrasts: {iterations: {axis: routing.iterations}}
experiments:
  digits: {data: {name: digits}}
  pairs: {data: {name: multidigits}}
  real: {data: {name: mnist}, variants: [caps]}
  overlaid: {data: {name: multimnist}, variants: [caps]}
  affine: {data: {name: affdigits}}
  views: {data: {name: toynorb, options: {view: azimuth}}}
  solids: {data: {name: toynorb}}
  norb: {data: {name: smallnorb}, variants: [matrix]}
  colour: {data: {name: cifar10}, variants: [caps]}
variants:
  caps:
    model: capsnet
    label: CapsNet_with a long name, 100 % & more
    options: {conv_channels: 8, primary_types: 2}
    grid: {routing.iterations: [1, 3], loss: [margin, spread]}
  matrix: {model: matrix_capsnet, options: {conv_channels: 8, primary_types: 2, conv_types: [2, 2]}}
  cnn: {model: cnn_matched, options: {matched_to: {name: capsnet, conv_channels: 8, primary_types: 2}}}
"""
EMPTY = pd.DataFrame()
DOCUMENT = r"""\documentclass[twocolumn]{article}
\usepackage{array,booktabs}
\begin{document}
%s
\end{document}
"""


@pytest.fixture
def written(plan, table_of, results):
    table = table_of(plan, [1.0, 1.5, "diverged", *["failed"] * 3, *["missing"] * 3])
    return table, *write_table(table, results / "tables")


def test_csv_holds_numbers_in_full(written):
    table, path, *_ = written
    read = list(DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert list(read[0]) == list(table.numbers.columns)
    assert [row["mean"] for row in read] == ["1.25", "", ""]
    assert float(read[0]["std"]) == table.numbers.loc[0, "std"]
    assert [row["failed"] for row in read] == ["0", "3", "0"]


def test_markdown_holds_every_row_and_says_how_to_read_it(written):
    lines = written[2].read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    ours = next(n for n, head in enumerate(rows[0]) if head.endswith("(error %)"))
    assert [row[ours] for row in rows[2:]] == ["1.25 ± 0.35", "failed", "-"]
    below = [line for line in lines if line and not line.startswith(("|", "**"))]
    assert below[0].startswith("Study 'small_study'. Test error in %")
    assert below[1] == "(a) digits is not mnist; 20 steps, not 300,000 or more."


def test_a_bar_in_a_cell_ends_no_column_of_markdown(results):
    table = Table("t", "a title", "how to read it", (Grid("", ("a|b", "c"), (Row(("x|y", "1")),)),), (), EMPTY)
    text = write_table(table, results)[1].read_text()
    assert r"| x\|y | 1   |" in text


def test_latex_is_escaped_and_ruled(written):
    body = written[3].read_text(encoding="utf-8").split("\n", 1)[1]  # the first line is a comment
    for rule in (r"\toprule", r"\bottomrule", r"\label{tab:sabour-table1}"):
        assert body.count(rule) == 1
    assert r"1.25~$\pm$~0.35" in body
    assert {"±", "†", "−"}.isdisjoint(body)
    assert body.count("%") == body.count(r"\%")
    assert body.count("_") == body.count(r"\_")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("−0.37 [−0.40, +0.02]", "$-$0.37 [$-$0.40, +0.02]"),
        ("a score of -3.5", "a score of $-$3.5"),
        ("JPEG-75, 2-4 a-b", "JPEG-75, 2-4 a-b"),
        ("-", "-"),
        ("1 ± 2†‡", r"1 $\pm$ 2$\dagger$$\ddagger$"),
        (r"\a{b}~^_#&%$", r"\textbackslash{}a\{b\}\textasciitilde{}\textasciicircum{}\_\#\&\%\$"),
        ("<0.01 > |", "$<$0.01 $>$ $|$"),
        ("28×28 ≤ 3", r"28$\times$28 $\leq$ 3"),
    ],
)
def test_signs_are_what_latex_calls_them(text, expected):
    assert escape(text) == expected


def test_an_interval_stays_on_one_line():
    rows = tuple(Row((f"a network with a long name, number {n}", "−0.37 [−0.40, +0.02]") * 3) for n in range(3))
    text = latex(Table("t", "a title", "how to read it", (Grid("", ("name", "difference") * 3, rows),), (), EMPTY))
    assert text.count("$-$0.37 [$-$0.40,~+0.02]") == 9


def test_the_longest_column_of_a_table_that_wraps_is_the_widest():
    rows = (Row(("a claim " * 8, "not comparable", "two networks, both named " * 8, "5 of 5")),)
    columns = ("claim", "verdict", "compared", "n")
    text = latex(Table("t", "a title", "how to read it", (Grid("", columns, rows),), (), EMPTY))
    first, last = (float(width) for width in re.findall(r"p\{([\d.]+)\\linewidth\}", text))
    assert 2 * first < last
    assert first + last < 1
    assert text.index("p{") < text.index("}l>") < text.rindex("p{") < text.index("}l@{}}")  # the others do not wrap
    assert "5~of~5" in text


def test_numbers_stand_on_the_right_under_a_heading_that_wraps_too():
    rows = (Row(("a network of many words " * 5, "1,204", "12.3")),)
    columns = ("network", "images in each second of a training " * 3, "ms")
    text = latex(Table("t", "", "", (Grid("", columns, rows),), (), EMPTY))
    (kinds,) = re.findall(r"begin\{tabular\}\{@\{\}(.*)@\{\}\}", text)
    assert re.sub(r"[\d.]+", "", kinds) == (
        r">{\raggedright\arraybackslash}p{\linewidth}>{\raggedleft\arraybackslash}p{\linewidth}r"
    )


def test_rows_that_wrap_stand_apart():
    short, long = (Grid("", ("a", "b"), (Row(("1", text)), Row(("2", text)))) for text in ("x", "x y z " * 60))
    texts = [latex(Table("t", "a title", "how to read it", (each,), (), EMPTY)) for each in (short, long)]
    assert [text.count("addlinespace") for text in texts] == [0, 1]


def test_a_long_table_goes_on_in_another_float():
    rows = tuple(Row((f"network {n}", "1.00")) for n in range(120))
    text = latex(Table("t", "a title", "how to read it", (Grid("", ("network", "error"), rows),), (), EMPTY))
    assert text.count(r"\begin{table") == text.count(r"\end{table") == 3
    assert text.count("(continued)") == text.count(r"\addtocounter{table}{-1}") == 2
    assert text.count(r"\label{") == 1
    assert all(rf"network {n} &" in text for n in range(120))


def test_numbers_are_set_flush_right_and_dashes_alone_are_not():
    rows = tuple(Row(("a network", number, MISSING)) for number in ("1.5", MISSING))
    text = latex(Table("t", "", "", (Grid("", ("network", "error", "other data"), rows),), (), EMPTY))
    assert r"\begin{tabular}{@{}lrl@{}}" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("ran", [True, False], ids=["all runs ended", "nothing ran"])
def test_pdflatex_sets_every_table_in_two_columns_without_an_overfull_box(make_plan, write_run, results, ran):
    plan = make_plan(EVERY_TABLE)
    lines = ("smallNORB (JPEG-75 copy): smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat: md5 12, not 34",)
    for run in plan.runs if ran else ():
        copy = lines if run.experiment in ("norb", "solids") else ()
        write_run(run, error=12.345 + run.seed, familiar=1.5, per_digit=4.0, unofficial=copy, stuck_at_chance=False)
    folder = results / "tables"
    written = write_tables(plan, collect(plan, results), folder)
    names = [path.stem for paths in written.values() for path in paths if path.suffix == ".tex"]
    assert len(names) == 13
    document = DOCUMENT % "\n".join(rf"\input{{{name}}}\clearpage" for name in names)
    (folder / "all.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    log = (folder / "all.log").read_text(encoding="utf-8", errors="replace")
    assert re.findall(r"Float too large.*|Missing character.*", log) == []
    too_wide = [line for line in re.findall(r"Overfull.*", log) if float(re.search(r"\(([\d.]+)pt", line)[1]) > 1]
    assert too_wide == []
    assert (folder / "all.pdf").stat().st_size > 10_000


def test_the_tables_of_a_study_are_written_by_name(make_plan, results):
    plan = make_plan(NOVEL + "tables: [hinton-table2, claims]\n")
    paths = write_tables(plan, collect(plan, results), results / "tables")
    assert list(paths) == ["hinton-table2", "claims"]
    assert [path.name for path in paths["claims"]] == ["claims.csv", "claims.md", "claims.tex"]
    assert all(path.read_text(encoding="utf-8") for each in paths.values() for path in each)
