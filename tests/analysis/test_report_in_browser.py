"""The page in headless Chromium, on a telephone and on a screen: what a reader sees, sorts, filters and prints."""

import pytest
from browser import CHROMIUM, Browser

from capsbench.analysis.collect import collect, learning_curves
from capsbench.analysis.report import summarise_provenance, write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (chromium, chromium-browser, google-chrome)")

WIDTHS = (400, 1400)
ERRORS = {"capsnet-iterations1": 12.0, "capsnet-iterations3": 9.5, "cnn_matched": 10.25}
# is the whole of an element to be seen, without moving anything sideways?
SEEN = """
(selector) => [...document.querySelectorAll(selector)].map((element) => {
  const box = element.getBoundingClientRect();
  const frame = element.closest(".wide").getBoundingClientRect();
  return box.width > 0 && box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.right <= innerWidth;
})
"""
COLUMN = (
    "[...document.querySelectorAll('#results tbody tr')].filter((r) => !r.hidden).map((r) => r.cells[{}].innerText)"
)
CLICK = "document.querySelectorAll('#results thead button')[{}].click()"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Where the page of all these tests stands."""
    return tmp_path_factory.mktemp("page") / "report.html"


@pytest.fixture
def page(written, make_plan, study_text, write_run, results):
    """A study with results, a variant named so long that it must be wrapped, and a run at chance."""
    if written.exists():
        return written
    text = study_text + "  long: {model: capsnet, label: a capsule network with a name that takes up a lot of room}\n"
    plan = make_plan(text)
    for run in plan.runs:
        error = ERRORS.get(run.variant, 8.0) + run.seed**2 / 10
        write_run(run, error=error, stuck_at_chance=run.key.endswith("matched/seed1"), diagnostics=[])
    facts = (summarise_provenance(plan, results), learning_curves(plan, results))
    return write_report(plan, collect(plan, results), written.parent, *facts)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_answer_and_verdict_are_seen_without_moving_the_page_sideways(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.problems == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.querySelector('.answer strong').getBoundingClientRect().bottom") < 400
    for column in (1, 2, 3):  # variant, ours, verdict
        seen = browser.run(f"({SEEN})('#results tbody tr :nth-child({column}):is(td, th)')")
        assert seen == [True] * 4, column
    background, text = browser.run(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    brightness = [sum(map(int, colour[4:-1].split(", "))) for colour in (background, text)]
    assert (brightness[0] < 150 < 600 < brightness[1]) if dark else (brightness[1] < 150 < 600 < brightness[0])


@pytest.mark.parametrize("width", [400, 1000])
def test_the_first_columns_stay_when_a_table_is_moved(browser, page, width):
    browser.open(page, width)
    browser.run("document.querySelector('#results .wide').style.maxWidth = '600px'")
    browser.run("document.querySelector('#results .wide').scrollLeft = 300")
    assert browser.run("document.querySelector('#results .wide').scrollLeft") > 50
    fixed = (1, 2, 3) if width > 400 else (1,)
    for column in fixed:
        assert browser.run(f"({SEEN})('#results tbody tr :nth-child({column}):is(td, th)')") == [True] * 4


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_sort_by_number_and_return_to_the_order_of_the_study(browser, page, width):
    browser.open(page, width)
    in_study = browser.run(COLUMN.format(1))
    numbers = [float(text.split(" ")[0]) for text in in_study]
    assert numbers != sorted(numbers)
    browser.run(CLICK.format(1))
    assert [float(text.split(" ")[0]) for text in browser.run(COLUMN.format(1))] == sorted(numbers)  # 9.83 below 12.17
    assert browser.run("document.querySelector('#results th[aria-sort=ascending]').innerText").startswith("ours")
    browser.run(CLICK.format(1))
    assert [float(text.split(" ")[0]) for text in browser.run(COLUMN.format(1))] == sorted(numbers, reverse=True)
    browser.run(CLICK.format(1))
    assert browser.run(COLUMN.format(1)) == in_study
    assert browser.run("document.querySelector('#results th[aria-sort]')") is None
    assert browser.problems == []


def test_reasons_open_at_a_click_and_keep_rows_low(browser, page):
    browser.open(page, 1400)
    heights = "[...document.querySelectorAll('#results tbody tr')].map((row) => row.getBoundingClientRect().height)"
    assert max(browser.run(heights)) < 75  # three lines of a name
    reason = "document.querySelector('#results td details')"
    summary, whole = browser.run(f"[{reason}.innerText, {reason}.textContent]")
    assert summary == "not comparable"
    assert "300,000" not in summary and "300,000" in whole
    browser.run(f"{reason}.querySelector('summary').click()")
    assert browser.run(f"{reason}.innerText").replace("\n", "") == whole.replace("\n", "")


def test_tables_are_filtered_by_words(browser, page):
    browser.open(page, 1400)
    typed = """
    (() => {{ const i = document.querySelector('#results input'); i.value = '{}';
      i.dispatchEvent(new Event('input')); return document.querySelector('#results [role=status]').innerText; }})()
    """
    assert browser.run(typed.format("CAPSNET digits")) == "2 of 4 rows"
    assert all("capsnet" in text for text in browser.run(COLUMN.format(0)))
    assert browser.run(typed.format("300,000")) == "3 of 4 rows"  # a reason that is not open
    assert browser.run(typed.format("sabour")) == "0 of 4 rows"
    assert browser.run(typed.format("psnet")) == "0 of 4 rows"  # words are found from their start
    assert browser.run(typed.format("")) == ""
    assert len(browser.run(COLUMN.format(0))) == 4


@pytest.mark.parametrize("scripts", [True, False])
def test_a_link_opens_the_runs_of_its_cell(browser, page, scripts):
    browser.open(page, 400, scripts=scripts)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    browser.run("document.querySelector('#results tbody a').click()")
    opened = "new Promise((done) => setTimeout(() => done(document.querySelectorAll('.cell[open]').length), 200))"
    assert browser.run(opened) == 1
    assert browser.run("document.querySelector('.cell[open] svg').getBoundingClientRect().right <= innerWidth")
    assert browser.run("document.querySelector('.cell[open]').innerText.includes('digits/capsnet-iterations1/seed2')")


@pytest.mark.parametrize(("width", "least", "most"), [(400, 350, 400), (1400, 470, 510)])
def test_plots_are_large_enough_to_read(browser, page, width, least, most):
    """A figure as wide as a column of a paper, 317 px, would have letters of 8 px on a page of 1,216 px."""
    drawn = page.with_name(f"plots{width}.html")
    figure = (
        '<section id="plots"><div class="plots">'
        + 2 * '<figure><img src="data:image/svg+xml,{}"></figure>'
        + "</div></section>"
    ).replace("{}", "%3Csvg xmlns='http://www.w3.org/2000/svg' width='317' height='200'/%3E")
    drawn.write_text(page.read_text(encoding="utf-8").replace("</main>", f"{figure}</main>"), encoding="utf-8")
    browser.open(drawn, width)
    boxes = browser.run(
        "[...document.querySelectorAll('#plots img')].map((i) => i.getBoundingClientRect()).map((b) => [b.y, b.width])"
    )
    assert all(least <= box[1] <= most for box in boxes)
    assert (boxes[0][0] == boxes[1][0]) == (width > 1000)  # side by side where there is room


def test_a_broad_plot_is_moved_sideways_on_a_telephone_and_not_made_small(browser, page):
    drawn = page.with_name("broad.html")
    svg = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='1400' height='200'/%3E"
    figure = f'<figure class="broad"><img src="{svg}" style="width: min(100%, 124rem)"></figure>'
    drawn.write_text(
        page.read_text(encoding="utf-8").replace("</main>", f'<div class="plots">{figure}</div></main>'),
        encoding="utf-8",
    )
    browser.open(drawn, 400)
    assert browser.run("document.querySelector('.broad img').getBoundingClientRect().width") > 900
    assert browser.run("document.documentElement.scrollWidth") <= 400


def test_the_table_of_contrasts_fits_a_screen(browser, page):
    browser.open(page, 1400)
    assert browser.run(
        "(() => { const t = document.querySelector('#contrasts .wide'); return t.scrollWidth <= t.clientWidth })()"
    )


def test_without_scripts_all_is_there_and_nothing_that_does_not_work(browser, page):
    browser.open(page, 1400, scripts=False)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert len(browser.run(COLUMN.format(1))) == 4
    assert browser.run("document.querySelectorAll('button, input').length") == 0


def test_the_printed_page_has_every_table_and_no_controls(browser, page, tmp_path):
    browser.open(page, 1400)
    browser.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.querySelector('#results .filter')).display") == "none"
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("getComputedStyle(document.querySelector('#results .wide')).overflowX") == "visible"
    browser.call("Emulation.setEmulatedMedia", media="")
