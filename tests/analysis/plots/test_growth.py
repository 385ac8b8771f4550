"""The plot of `capsbench bench`: a page wide, no text over other text, one size varied in each panel."""

import itertools

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from capsbench.analysis.plots.growth import AXES, PAGE, plot_growth

BASE = {"inputs": 1152, "parents": 10, "iterations": 3, "batch": 64}
VALUES = {
    "inputs": (288, 576, 1152, 2304, 4608, 9216), "parents": (5, 10, 20, 40), "iterations": (1, 2, 3, 5, 7),
    "batch": (1, 4, 16, 64, 256, 1024),
}  # fmt: skip


def measured(peaks: bool) -> pd.DataFrame:
    sizes = {tuple((BASE | {axis: value}).items()) for axis, values in VALUES.items() for value in values}
    rows = []
    for size, (name, factor) in itertools.product(map(dict, sizes), [("dynamic", 4), ("em", 12), ("uniform", 1)]):
        if name == "uniform" and size["iterations"] != 3:
            continue
        work = factor * size["inputs"] * size["parents"] * size["iterations"] * size["batch"] / 1e6
        iterations = None if name == "uniform" else size["iterations"]
        rows.append({
            "group": "growth", "name": name, **size, "iterations": iterations, "fastest_ms": 0.1 + work,
            "peak_mb": 5 + 20 * work if peaks else None,
        })  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(params=[False, True], ids=["times", "times and memory"])
def figure(request):
    yield plot_growth(measured(request.param))
    plt.close("all")


def test_a_panel_for_each_size_with_all_its_values(figure):
    panels = figure.axes
    assert len(panels) in (4, 8)
    for panel, axis in zip(panels, itertools.cycle(AXES)):
        for label in ("dynamic routing", "EM routing"):
            (line,) = [line for line in panel.lines if line.get_label() == label]
            assert tuple(line.get_xdata()) == VALUES[axis]
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")


def test_it_is_a_page_wide_with_text_that_can_be_read(figure):
    assert figure.get_size_inches()[0] == PAGE
    texts = [text for text in _texts(figure) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 6


def test_no_text_lies_outside_or_over_other_text(figure):
    figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in _texts(figure) if text.get_text().strip()]
    assert len(boxes) > 30
    page = figure.bbox
    for said, box in boxes:
        assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1, said
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert min(min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)) <= 1, (one, other)


def test_a_measurement_without_growth_says_so():
    figure = plot_growth(measured(False).assign(group="routing"))
    assert "nothing to show" in figure.axes[0].texts[0].get_text()
    plt.close(figure)


def _texts(figure):
    for panel in figure.axes:
        yield from (panel.xaxis.label, panel.yaxis.label, panel.title)
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            yield from (tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)
    for legend in figure.legends:
        yield from legend.get_texts()
