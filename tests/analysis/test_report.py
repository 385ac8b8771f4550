import json
import re
import subprocess
import sys
from base64 import b64decode
from html import unescape
from html.parser import HTMLParser

import pytest

from capsbench.analysis.collect import collect, learning_curves
from capsbench.analysis.conclusion import findings
from capsbench.analysis.plots import write_plots
from capsbench.analysis.report import MOST_BYTES, summarise_provenance, write_report

WITHOUT_MLFLOW = """
import sys

class Refuse:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "mlflow":
            raise ImportError(name)

sys.meta_path.insert(0, Refuse)
from pathlib import Path

from capsbench.analysis.collect import collect, learning_curves
from capsbench.analysis.plots import write_plots
from capsbench.analysis.report import summarise_provenance, write_report
from capsbench.study import load_plan

plan, results = load_plan(Path(sys.argv[1])), Path(sys.argv[2])
runs, folder = collect(plan, results), results / "small_study"
write_plots(plan, runs, folder / "plots", results)
write_report(plan, runs, folder, summarise_provenance(plan, results), learning_curves(plan, results))
"""
PLOTTED = "plots: [error_by_variant, contrasts]\n"


class Page(HTMLParser):
    """What a reader sees of a page: its words by tag, its images, its links, its tables as grids of words."""

    def __init__(self, text: str):
        super().__init__()
        self.text = text
        self.tags: list[str] = []
        self.words: dict[str, list[str]] = {}
        self.ids: list[str] = []
        self.images: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "img":
            self.images.append(found["src"])
        if tag == "a":
            self.links.append(found["href"])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data):
        if data.strip():
            self.words.setdefault(self.tags[-1], []).append(data.strip())
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += data.strip() + " "

    def row(self, start: str) -> list[str]:
        """Return the first row whose first words are these."""
        return next([word.strip() for word in row] for row in self.rows if row and row[0].startswith(start))

    def says(self, text: str) -> bool:
        return any(text in word for words in self.words.values() for word in words)


@pytest.fixture
def page_of(results):
    def write(plan) -> Page:
        facts = (summarise_provenance(plan, results), learning_curves(plan, results))
        path = write_report(plan, collect(plan, results), results / plan.study.name, *facts)
        return Page(path.read_text(encoding="utf-8"))

    return write


@pytest.fixture
def half_done(make_plan, study_text, write_run):
    plan = make_plan(study_text + PLOTTED)
    for run in plan.runs[:4]:
        write_run(run, error=1.5)
    write_run(plan.runs[4], "diverged")
    return plan


def plot(plan, results):
    write_plots(plan, collect(plan, results), results / "small_study/plots", results)


def test_the_page_is_written_where_people_look_for_it(plan, results):
    folder = results / "small_study"
    assert write_report(plan, collect(plan, results), folder, {}) == folder / "report.html"


def test_the_question_and_the_conclusion_stand_first(half_done, page_of, results):
    page = page_of(half_done)
    assert page.words["h1"] == ["small_study"]
    assert "two variants on digits" in page.words["p"]
    said = findings(half_done, collect(half_done, results))
    headings = [unescape(text) for text in re.findall("<strong>(.*?)[:.]</strong>", page.text)]
    assert headings == [found.heading for found in said]
    assert all(page.says(item) for found in said for item in found.items)
    assert page.says("digits is not mnist")
    assert page.text.index("<strong>") < page.text.index("<table")


def test_many_contrasts_are_named_behind_their_families(
    make_plan, study_text, write_run, page_of, results, monkeypatch
):
    monkeypatch.setattr("capsbench.analysis.conclusion.ONE_BY_ONE", 0)
    plan = make_plan(study_text + "contrasts:\n  one: [{a: capsnet-iterations3, b: cnn_matched}]\n")
    for run in plan.runs:
        write_run(run, error=5.0 + run.seed / 10)
    told = findings(plan, collect(plan, results))
    (grid,) = [grid for found in told for grid in found.behind]
    assert grid.texts() == ["capsnet-iterations3 against cnn_matched: handwritten digits of scikit-learn identical"]
    assert page_of(plan).row("capsnet-iterations3 against cnn_matched")[1].startswith("identical 5.10 − 5.10")


def test_what_the_study_asks_stands_before_everything_else(make_plan, study_text, write_run, page_of):
    text = study_text + "contrasts:\n  one: [{a: capsnet-iterations3, b: cnn_matched, name: far}]\n"
    plan = make_plan(text + "questions:\n  Is CapsNet better?:\n    three iterations: [far]\n")
    for run in plan.runs:
        write_run(run, error=(8.0 if run.variant == "capsnet-iterations3" else 5.0) + run.seed / 10)
    page = page_of(plan)
    assert page.rows[0][0].strip() == "first against second"
    assert page.rows[1][0].strip() == "Is CapsNet better?"
    name, answer = page.rows[2]
    assert name.strip() == "three iterations"
    assert answer.startswith("undecided 8.10 − 5.10")  # no spread, no interval
    assert page.text.index("Is CapsNet better?") < page.text.index("1 contrasts")


def test_the_verdict_stands_beside_our_number(half_done, page_of):
    page = page_of(half_done)
    heads = [word.strip().replace("\xa0", " ") for word in page.rows[0]]
    assert heads[:3] == ["variant", "ours (error %)", "verdict"]
    row = page.row("capsnet-iterations1")
    assert row[:2] == ["capsnet-iterations1", "1.50 ± 0.00 [1.50, 1.50]"]  # its own interval
    assert "95 % interval" not in heads  # beside a difference it would look like that of the difference
    assert row[2].startswith("not comparable digits is not mnist; ")  # the verdict opens to its reasons
    assert "3 of 3" in page.row("capsnet-iterations1")
    assert "1 of 3 1 diverged" in page.row("capsnet-iterations3")
    assert page.row("cnn_matched")[:3] == ["cnn_matched", "-", "not run"]
    trained = half_done.runs[0].data.trained_images
    assert page.says(f"handwritten digits of scikit-learn (digits), {trained:,} training images:")
    assert page.says("3 variants, 1.50 %")


def test_columns_that_say_the_same_in_every_row_are_left_out(plan, write_run, page_of):
    for run in plan.runs:
        write_run(run, error=5.0 + run.seed / 10)
    heads = [word.strip().replace("\xa0", " ") for word in page_of(plan).rows[0]]
    assert heads[:3] == ["variant", "ours (error %)", "verdict"]
    assert "n" not in heads
    write_run(plan.runs[0], error=90.0, stuck_at_chance=True, diagnostics=[])
    assert "3 of 3 1 stuck at chance" in page_of(plan).row("capsnet-iterations1")  # whole, and not sound


def test_results_and_contrasts_are_grouped(make_plan, study_text, write_run, page_of):
    """A table per experiment, and one per family; what papers say stands last where few rows have a published value."""
    more = "  views: {data: {name: toynorb}}\nvariants:"
    families = "contrasts:\n  one: [{a: capsnet-iterations3, b: capsnet-iterations1, post_hoc: true}]\n"
    families += "  two: [{a: capsnet-iterations3, b: cnn_matched, experiment: digits}]\n"
    plan = make_plan(study_text.replace("\nvariants:", f"\n{more}", 1) + families)
    for run in plan.runs:
        write_run(run, error=5.0 + run.seed / 10)
    page = page_of(plan)
    heads = [[word.strip().replace("\xa0", " ") for word in row] for row in page.rows if row]
    digits, views = [row for row in heads if row[:2] == ["variant", "ours (error %)"]]
    assert digits[2] == "verdict" and "verdict" not in views[:4]
    assert sum(row[:2] == ["contrast", "difference (points)"] for row in heads) == 2
    late = [row[0] for row in heads if row[0].startswith("capsnet") and "post hoc" in row[0]]
    assert len(late) == 2  # of one family, on both data sets
    assert page.says("Post hoc: the contrast was declared when")


def test_coverage_counts_runs_and_published_values(half_done, page_of):
    page = page_of(half_done)
    assert page.says("4 ok, 4 missing, 1 diverged")
    facts = dict(zip(page.words["dt"], page.words["dd"], strict=True))
    assert facts["variants with a result"] == "2 of 3"
    assert facts["with a decided verdict"] == "0 of 2"  # the digits are a stand-in


def test_each_cell_leads_to_its_runs_and_what_it_was(half_done, page_of):
    page = page_of(half_done)
    anchors = [link[1:] for link in page.links if link.startswith("#cell-")]
    assert {"cell-1", "cell-2", "cell-3"} <= set(anchors)
    assert set(page.links) <= {f"#{name}" for name in page.ids}  # all lead somewhere
    for run in half_done.runs:
        assert page.row(run.key)
    assert page.row(half_done.runs[0].key)[1:3] == ["ok", "1.50"]
    assert page.row(half_done.runs[4].key)[1:3] == ["diverged", "-"]
    configurations = [word for word in page.words["pre"] if word.startswith("data:")]
    assert len(configurations) == 3
    assert "iterations: 3" in configurations[1]
    assert page.tags.count("svg") == 2  # of the cells with runs
    assert page.tags.count("polyline") == 4  # one per run that ended


def test_without_run_folders_the_page_has_no_curves(half_done, results):
    path = write_report(half_done, collect(half_done, results), results / "small_study", {"commit": "0123"})
    page = Page(path.read_text(encoding="utf-8"))
    assert "svg" not in page.tags
    assert page.row("capsnet-iterations1")[1].startswith("1.50 ± 0.00")
    assert "0123" in page.words["dd"]


def test_contrasts_say_what_is_shown_and_no_more(plan, write_run, page_of):
    for run in plan.runs:
        write_run(
            run, error={"capsnet-iterations1": 5.0, "capsnet-iterations3": 4.0}.get(run.variant, 3.0) + run.seed / 10
        )
    row = next(row for row in page_of(plan).rows if row and "against" in row[0])
    assert row[2].strip() == "undecided"  # the same in every seed: no spread, no interval
    for run in plan.runs[:6]:
        write_run(run, error={"capsnet-iterations1": 5.0, "capsnet-iterations3": 4.0}[run.variant] + run.seed**2 / 50)
    write_run(plan.runs[3], error=3.95)
    page = page_of(plan)
    row = next(row for row in page.rows if row and "against" in row[0])
    assert row[2].strip() == "lower"
    assert not any("paired)" in text for row in page.rows for text in row)  # no sentences in the table
    for run in plan.runs[3:5]:
        write_run(run, error=3.95, stuck_at_chance=True, diagnostics=[])
    page = page_of(plan)
    row = next(row for row in page.rows if row and "against" in row[0])
    assert row[2].strip() == "at chance in 2 of 3 seeds"
    assert page.says("does not count as shown")


def test_the_conclusion_begins_with_what_it_is_about(half_done, page_of):
    text = page_of(half_done).text
    answer = text[text.index('class="answer"') :]
    scope = re.search(r'<p class="scope">(.*?)</p>', answer, re.DOTALL)
    assert scope and scope.start() < answer.index("<strong>")
    for fact in ("handwritten digits of scikit-learn", "training images", "2 epochs", "three seeds", "over seeds"):
        assert fact in scope[1]


def test_the_page_holds_the_plots_that_are_drawn(half_done, page_of, results):
    assert page_of(half_done).images == []
    plot(half_done, results)
    page = page_of(half_done)
    assert len(page.images) == 2
    for image, name in zip(page.images, ("error_by_variant", "contrasts"), strict=True):
        head, content = image.split(",")
        files = {ending: results / f"small_study/plots/{name}.{ending}" for ending in ("png", "svg")}
        smaller = min(files, key=lambda ending: files[ending].stat().st_size)
        assert head == f"data:image/{'svg+xml' if smaller == 'svg' else 'png'};base64"
        assert b64decode(content) == files[smaller].read_bytes()


def test_a_plot_of_several_columns_takes_the_width_of_the_page(half_done, page_of, results):
    from PIL import Image

    plot(half_done, results)
    Image.new("RGB", (1980, 99)).save(results / "small_study/plots/contrasts.png")
    page = page_of(half_done).text
    assert page.count('<figure class="broad">') == 1
    assert page.count('style="width: min(100%, 62.0rem)"') == 1


def test_a_plot_that_is_longer_than_a_printed_page_goes_over_several(half_done, page_of, results):
    from PIL import Image

    plot(half_done, results)
    for size, head in (
        ((2070, 2900), '<figure class="broad">'),
        ((2070, 3100), '<figure class="broad long">'),
        ((990, 3100), '<figure class="long">'),
        ((4140, 5900), '<figure class="broad">'),  # drawn at half its size
    ):
        Image.new("RGB", size).save(results / "small_study/plots/contrasts.png")
        assert page_of(half_done).text.count(head) == 1


def test_a_page_stays_below_five_megabytes(make_plan, study_text, page_of, results):
    import numpy as np
    from PIL import Image

    plan = make_plan(study_text + "plots: [error_by_variant, contrasts, reconstructions]\n")
    folder = results / "small_study/plots"
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "contrasts.png")  # 2.4 MB, which a palette makes a fourth
    (folder / "error_by_variant.svg").write_text("<svg/>")
    (folder / "reconstructions.svg").write_bytes(b"x" * 6_000_000)
    page = page_of(plan)
    assert MOST_BYTES < 5_000_000
    assert len(page.text.encode()) < 5_000_000
    assert [image[:14] for image in page.images] == ["data:image/svg", "data:image/web"]
    assert page.says("plots/reconstructions.png")


def test_the_page_needs_no_other_file(half_done, results, page_of):
    plot(half_done, results)
    text = page_of(half_done).text
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text) == []
    assert re.findall(r"@import|url\((?!data:)|https?://(?!www\.w3\.org)", re.sub(r"data:[^\"]*", "", text)) == []


def test_the_page_holds_the_provenance(half_done, page_of):
    words = page_of(half_done).words
    facts = dict(zip(words["dt"], words["dd"], strict=True))
    expected = {
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "versions": "python 3.11.7, torch 2.14.1",
        "machine": "a processor; Linux 6 x86_64",
        "fingerprint of the training set as read (digits)": "f" * 64,
        "threads per run": "1",
        "training time, sum over all runs": "7.5 min",
        "wall time, first start to last end": "2.0 min",
    }
    assert {name: facts[name] for name in expected} == expected


def test_provenance_names_all_values_where_runs_differ(plan, write_run, results):
    write_run(plan.runs[0], commit="a" * 40)
    write_run(plan.runs[1], commit="b" * 40)
    write_run(plan.runs[2], commit="a" * 40)
    write_run(plan.runs[3], commit="c" * 40, digest="0" * 16)
    write_run(plan.runs[4], "failed", commit="d" * 40)
    facts = summarise_provenance(plan, results)
    assert facts["commit"] == f"{'a' * 40}; {'b' * 40}"
    assert facts["training time, sum over all runs"] == "4.5 min"


def test_provenance_names_the_items_that_were_shown_and_what_evaluated_them(plan, write_run, results):
    seeds = {0: "a" * 64, 1: "b" * 64, 2: "c" * 64}
    for place, run in enumerate(plan.runs):
        data = {"fingerprint": "f" * 64, "train_images": 9, "epoch_images": 9, "unofficial": []}
        data["shown"] = {"train": seeds[run.seed], "test": "0123456789abcdef" * 4}
        memory = {} if place == 0 else {"peak_memory_mb": 600.4 + place}
        folder = write_run(run, data=data, **memory)
        path = folder.evaluation_path("accuracy")
        about = json.loads(path.read_text()) | {"commit": "d" * 40}
        about["training_started"] = "1999-01-01T00:00:00Z" if place == 1 else about["training_started"]
        about["commit"] = "e" * 40 if place == 1 else about["commit"]  # it belongs to a training before this one
        path.write_text(json.dumps(about))
    facts = summarise_provenance(plan, results)
    assert facts["items shown (digits)"] == "train: 3 different; test: 0123456789ab"
    assert facts["evaluation commit"] == "d" * 40
    assert facts["largest peak memory of a run"] == "608 MiB"


def test_provenance_of_older_runs_leaves_out_what_they_did_not_note(plan, write_run, results):
    write_run(plan.runs[0])
    assert not {"evaluation commit", "items shown (digits)", "largest peak memory of a run"} & {
        *summarise_provenance(plan, results)
    }


def test_the_page_names_the_files_that_are_not_official(plan, write_run, page_of):
    line = "train-dat.mat: md5 12, the official file's is 34"
    write_run(plan.runs[0], unofficial=(line,))
    page = page_of(plan)
    facts = dict(zip(page.words["dt"], page.words["dd"], strict=True))
    assert facts["not the official files (digits)"] == line
    assert page.says("not the official files:")  # among the deviations
    assert page.says("(runs.csv has their checksums): train-dat.mat.")


def test_deviations_lead_to_the_cells_that_have_them(half_done, page_of):
    page = page_of(half_done)
    (start,) = [match.start() for match in re.finditer(r"<li>digits is not mnist:", page.text)]
    item = page.text[start : page.text.index("</li>", start)]
    assert re.findall(r'href="#(cell-\d)"', item) == ["cell-1", "cell-2"]


def test_the_page_holds_a_table_for_each_paper(make_plan, study_text, page_of):
    more = "  views: {data: {name: toynorb, options: {view: azimuth}}}\nvariants:"
    page = page_of(make_plan(study_text.replace("variants:", more)))
    assert {"sabour-table1", "hinton-table2", "summary", "cost"} <= set(page.ids)
    assert "hinton-table1" not in page.ids


def test_the_page_lists_runs_that_did_not_end_well(plan, write_run, page_of):
    write_run(plan.runs[0])
    page = page_of(plan)
    assert not page.says("stuck at chance:")
    assert page.says("8 runs have not ended")
    write_run(plan.runs[1], error=90.4, stuck_at_chance=True, diagnostics=[{"iteration": 1, "entropy": 1.0}])
    write_run(plan.runs[2], stuck_at_chance=True, diagnostics=[])
    write_run(plan.runs[3], "failed")
    page = page_of(plan)
    start = page.text.index('id="unwell"')
    listed = page.text[start : page.text.index("</section>", start)]
    assert re.findall(r'class="stuck">([^<]*)<', listed) == [run.key for run in plan.runs[1:4]]
    assert "90.40" in listed
    assert "coupling entropy 1.00" in listed
    assert "uniform" in listed
    assert "failed" in listed
    assert "nan" not in re.sub(r"data:[^\"]*", "", listed)
    assert "3 of 3 2 stuck at chance" in page.row("capsnet-iterations1")


def test_what_a_study_says_is_text_and_not_markup(make_plan, study_text, page_of):
    bad = "<b>bold</b> & <script>alert(1)</script>"
    plan = make_plan(study_text.replace("two variants on digits", bad))
    page = page_of(plan)
    assert page.tags.count("script") == 1  # the page's own
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; &lt;script&gt;" in page.text
    assert bad not in page.text


def test_plots_and_report_are_made_without_mlflow(half_done, results):
    command = [sys.executable, "-c", WITHOUT_MLFLOW, str(half_done.path), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in (results / "small_study").iterdir()} >= {"plots", "report.html"}
