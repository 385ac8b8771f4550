"""How plots become files."""

import io
import logging
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from capsbench.analysis.measures import Measures, read_measures
from capsbench.analysis.plots.contrasts import plot_contrasts
from capsbench.analysis.plots.protocols import plot_protocol
from capsbench.analysis.plots.registry import NEED_RUN_FOLDERS, OF_IMAGES, PLOTS
from capsbench.analysis.plots.style import PIXELS_PER_INCH
from capsbench.run.folder import write_whole
from capsbench.study import Plan

log = logging.getLogger(__name__)

_SVG_SALT = "capsbench"  # the same study gives the same svg bytes


def write_plots(
    plan: Plan,
    runs: pd.DataFrame,
    folder: Path,
    results: Path | None = None,
    measures: Measures | None = None,
    images: bool = True,
    experiment: str | None = None,
) -> list[Path]:
    """Draw the plots that a study asks for.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`.
        folder: where the files go, as NAME.png and NAME.svg.
        results: the folder of results with the run folders. None where they are not here: plots that are drawn from
            them, such as learning curves, then stay as they are in `folder`, which a message says.
        measures: from `read_measures` or `load_measures`; left out: read from the run folders.
        images: whether the run folders have predictions. Those that a reference keeps have not: what shows images
            stays as it is.
        experiment: the one to draw, in the colours and markers that it has beside the others; None for all.

    Returns:
        The paths of what was drawn.
    """
    if measures is None:
        measures = {} if results is None else read_measures(plan, results)
    drawn = runs if experiment is None else runs[runs["experiment"] == experiment]
    measures = {key: measures[key] for key in drawn["key"] if key in measures}
    needed = NEED_RUN_FOLDERS if results is None else () if images else OF_IMAGES
    kept = [name for name in plan.study.plots if name in needed]
    paths = []
    for name in plan.study.plots:
        if name in kept:
            continue
        if name == "contrasts":  # from all runs: Holm's correction is for whole families
            figure = plot_contrasts(plan, results, runs, experiment)
        elif name in PLOTS:
            figure = PLOTS[name](plan, results, drawn)
        else:
            figure = plot_protocol(name, plan, results, drawn, measures)
        paths += save_figure(figure, folder, name)
    if kept:
        stay = " and stay as they are" if experiment is None else ""
        log.info(f"{folder}: without run folders the following cannot be drawn{stay}: {', '.join(kept)}")
    return paths


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as NAME.png and NAME.svg, close it, and return the two paths."""
    matplotlib.rcParams["svg.hashsalt"] = _SVG_SALT
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    write_whole(png, lambda aside: _save_png(figure, aside))
    write_whole(svg, lambda aside: figure.savefig(aside, format="svg", dpi=PIXELS_PER_INCH, metadata={"Date": None}))
    plt.close(figure)
    return [png, svg]


def _save_png(figure: Figure, path: Path) -> None:
    """Write a figure in 256 colours: a third of the bytes, which references are committed with."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=PIXELS_PER_INCH, pil_kwargs={"compress_level": 0})
    image = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(path, format="png", optimize=True, dpi=(PIXELS_PER_INCH, PIXELS_PER_INCH))
