import base64
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import write_plots
from capsbench.analysis.report import summarise_provenance, write_report

WITHOUT_MLFLOW = """
import sys

class Refuse:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "mlflow":
            raise ImportError(name)

sys.meta_path.insert(0, Refuse)
from pathlib import Path

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import write_plots
from capsbench.analysis.report import write_report
from capsbench.study import load_plan

plan, results = load_plan(Path(sys.argv[1])), Path(sys.argv[2])
runs = collect(plan, results)
write_plots(plan, results, results / "small_study/plots")
write_report(plan, results, runs)
"""
PLOTTED = "plots: [error_by_variant, reconstructions]\n"


class Page(HTMLParser):
    """What a reader sees of a page: its words by tag, its images."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.words: dict[str, list[str]] = {}
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attributes)["src"])

    def handle_data(self, data):
        if data.strip():
            self.words.setdefault(self.tags[-1], []).append(data.strip())


@pytest.fixture
def page_of(results):
    return lambda plan: Page(write_report(plan, results, collect(plan, results)).read_text(encoding="utf-8"))


@pytest.fixture
def half_done(make_plan, study_text, write_run):
    plan = make_plan(study_text + PLOTTED)
    for run in plan.runs[:4]:
        write_run(run, error=1.5)
    write_run(plan.runs[4], "diverged")
    return plan


def test_the_page_is_written_where_people_look_for_it(plan, results):
    assert write_report(plan, results, collect(plan, results)) == results / "small_study/report.html"


def test_the_page_holds_the_table(half_done, page_of):
    words = page_of(half_done).words
    assert words["h1"] == ["small_study"]
    assert {"ours (error %)", "n", "verdict"} <= set(words["th"])
    assert {"1.50 ± 0.00", "3 of 3", "1 of 3, 1 diverged", "no published value"} <= set(words["td"])
    assert any(text == "Runs: 4 ok, 4 missing, 1 diverged." for text in words["p"])


def test_the_page_holds_the_plots_that_are_drawn(half_done, page_of, results):
    before = page_of(half_done)
    assert (before.images, before.words["p"].count("not drawn yet")) == ([], 2)
    write_plots(half_done, results, results / "small_study/plots")
    after = page_of(half_done)
    assert "not drawn yet" not in after.words["p"]
    svgs = [results / f"small_study/plots/{name}.svg" for name in ("error_by_variant", "reconstructions")]
    assert [base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")) for image in after.images] == [
        svg.read_bytes() for svg in svgs
    ]


def test_the_page_needs_no_other_file(half_done, results, page_of):
    write_plots(half_done, results, results / "small_study/plots")
    page_of(half_done)
    text = (results / "small_study/report.html").read_text()
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', text) == []


def test_the_page_holds_the_provenance(half_done, page_of):
    words = page_of(half_done).words
    facts = dict(zip(words["dt"], words["dd"], strict=True))
    assert facts == {
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "versions": "python 3.11.7, torch 2.14.1",
        "machine": "a processor; Linux 6 x86_64",
        "data fingerprint (digits)": "f" * 64,
        "threads per run": "1",
        "training time, sum over all runs": "7.5 min",
        "wall time, first start to last end": "2.0 min",
    }


def test_provenance_names_all_values_where_runs_differ(plan, write_run, results):
    write_run(plan.runs[0], commit="a" * 40)
    write_run(plan.runs[1], commit="b" * 40)
    write_run(plan.runs[2], commit="a" * 40)
    write_run(plan.runs[3], commit="c" * 40, digest="0" * 16)
    write_run(plan.runs[4], "failed", commit="d" * 40)
    facts = summarise_provenance(plan, results)
    assert facts["commit"] == f"{'a' * 40}; {'b' * 40}"
    assert facts["training time, sum over all runs"] == "4.5 min"


def test_the_page_names_the_files_that_are_not_official(plan, write_run, page_of):
    line = "train-dat.mat: md5 12, the official file's is 34"
    write_run(plan.runs[0], unofficial=(line,))
    words = page_of(plan).words
    facts = dict(zip(words["dt"], words["dd"], strict=True))
    assert facts["not the official files (digits)"] == line
    assert "digits†" in words["td"]
    note = "† not the official files (runs.csv has their checksums): train-dat.mat."
    assert any(note in text for texts in words.values() for text in texts)


def test_the_page_holds_a_table_for_each_paper(make_plan, study_text, page_of):
    more = "  views: {data: {name: toynorb, options: {view: azimuth}}}\nvariants:"
    words = page_of(make_plan(study_text.replace("variants:", more))).words
    captions = [text for text in words["p"] if "Published: " in text]
    assert [("(S17), Table 1" in text, "(H18), Table 2" in text) for text in captions] == [(True, False), (False, True)]


def test_the_page_marks_runs_that_are_stuck_at_chance(plan, write_run, results, page_of):
    write_run(plan.runs[0])
    assert "stuck at chance" not in page_of(plan).words["h2"]
    write_run(plan.runs[1], error=90.4, stuck_at_chance=True, diagnostics=[{"iteration": 1, "entropy": 1.0}])
    page = page_of(plan)
    assert "stuck at chance" in page.words["h2"]
    assert {plan.runs[1].key, "90.40", "2 of 3, 1 stuck at chance"} <= set(page.words["td"])
    assert any("coupling entropy 1.00" in cell and "uniform" in cell for cell in page.words["td"])
    write_run(plan.runs[2], stuck_at_chance=True, diagnostics=[])
    assert "nan" not in page_of(plan).words["td"]
    text = (results / "small_study/report.html").read_text()
    assert re.findall(r'<td class="stuck">([^<]*)</td>', text) == [
        plan.runs[1].key, plan.runs[2].key, "3 of 3, 2 stuck at chance",
    ]  # fmt: skip


def test_what_a_study_says_is_text_and_not_markup(make_plan, study_text, page_of, results):
    plan = make_plan(study_text.replace("two variants on digits", "<b>bold</b> & <script>alert(1)</script>"))
    page = page_of(plan)
    assert {"b", "script"}.isdisjoint(page.tags)
    assert "<b>bold</b> & <script>alert(1)</script>" in " ".join(page.words["p"])
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; " in (results / "small_study/report.html").read_text()


def test_plots_and_report_are_made_without_mlflow(half_done, results):
    command = [sys.executable, "-c", WITHOUT_MLFLOW, str(half_done.path), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in (results / "small_study").iterdir()} >= {"plots", "report.html"}
