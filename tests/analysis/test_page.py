"""Plots as the page embeds them, and its table of results."""

import io
from base64 import b64decode
from dataclasses import replace

import numpy as np
from PIL import Image

from capsbench.analysis.cells import cells
from capsbench.analysis.collect import collect
from capsbench.analysis.page import BESIDE, plots_of, results_tables
from capsbench.analysis.verdicts import Verdict


def test_large_plots_are_drawn_as_on_a_screen_before_any_is_left_out(tmp_path):
    grey = np.repeat(np.random.default_rng(0).integers(0, 256, (600, 2800, 1), dtype=np.uint8), 3, axis=2)
    grey[20:60, 20:60] = (0, 114, 178)  # a marker: few pixels, and a colour of its own
    for name in ("contrasts", "error_by_variant"):
        Image.fromarray(grey).save(tmp_path / f"{name}.png")
    names, whole = ["contrasts", "error_by_variant"], (tmp_path / "contrasts.png").stat().st_size

    def shown(most_bytes):
        addresses = [plot.data for plot in plots_of(tmp_path, names, most_bytes)]
        return [Image.open(io.BytesIO(b64decode(data.split(",")[1]))) if data else None for data in addresses]

    assert [image.width for image in shown(3 * whole)] == [2800, 2800]
    small = shown(whole // 4)
    assert [image.width for image in small] == [1400, 1400]
    assert np.abs(np.array(small[0].convert("RGB"))[20, 20].astype(int) - (0, 114, 178)).max() < 12
    assert [image is None for image in shown(whole // 10)] == [False, True]  # the last is left out first


def test_a_plot_that_is_made_smaller_keeps_the_pale_bands_of_seeds(tmp_path):
    """Among saturated colours, of which a palette would take what white and the bands have in common."""
    drawn = np.full((1500, 3000, 3), 255, dtype=np.uint8)
    drawn[500:1000] = pale = (224, 236, 245)
    drawn[:200] = np.random.default_rng(0).integers(0, 256, (200, 3000, 3))
    Image.fromarray(drawn).save(tmp_path / "curves.png")
    (plot,) = plots_of(tmp_path, ["curves"], most_bytes=500_000)
    assert plot.data is not None
    shown = np.asarray(Image.open(io.BytesIO(b64decode(plot.data.partition(",")[2]))).convert("RGB")).astype(int)
    assert shown.shape[1] < 3000
    band, white = shown[len(shown) // 2].mean(axis=0), shown[-1].mean(axis=0)
    assert abs(band - pale).max() < 8
    assert white.min() > 250


def test_a_difference_from_a_paper_is_given_where_the_two_can_be_compared(plan, write_run, results):
    for run in plan.runs:
        write_run(run, error=1.5)
    found = cells(plan, collect(plan, results))
    (sheet,) = results_tables(found)
    assert BESIDE not in sheet.columns
    first = next(place for place, cell in enumerate(found) if cell.verdict.word == "not comparable")
    found[first] = replace(found[first], verdict=Verdict("worse", "", 1.16, 1.05, 1.27))
    (sheet,) = results_tables(found)
    shown = [row[sheet.columns.index(BESIDE)] for row in sheet.rows]
    assert [(field.text, field.below) for field in shown if field.text != "-"] == [("+1.16", "[+1.05, +1.27]")]


def test_a_published_accuracy_stands_as_an_error(plan, write_run, results):
    for run in plan.runs:
        write_run(run, error=1.5)
    found = cells(plan, collect(plan, results))
    first = next(place for place, cell in enumerate(found) if cell.published is not None)
    value = replace(found[first].published, unit="accuracy", printed="99.72", error=0.28, std=None)
    found[first] = replace(found[first], published=value)
    (sheet,) = results_tables(found)
    assert sheet.rows[first][sheet.columns.index("published (error %)")].text == "0.28 (printed: accuracy 99.72)"
