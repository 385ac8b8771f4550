"""No text outside the page or over other text, no interval cut without an arrow, whatever the numbers are."""

import itertools

import pytest
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP

from capsbench.analysis.plots import PLOTS

NAMES = ("error_by_variant", "contrasts", "learning_curves", "routing_iterations", "accuracy_cost", "coupling_entropy")
STUDY = """\
name: long
seeds: [0, 1, 2]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits, validation_images: 100}}
  pairs: {data: {name: multidigits, validation_images: 100}}
variants:
  capsnet:
    model: capsnet
    label: capsules with a label that is long enough for three
    grid: {routing.iterations: [1, 3], decoder: [null, fully_connected]}
  cnn: {model: cnn_matched, label: CNN}
"""
CARETS = (CARETDOWN, CARETUP, CARETLEFT, CARETRIGHT)


@pytest.fixture(params=[(1.0, 0.05), (0.02, 3.0), (80.0, 0.0)], ids=["close", "wide", "at chance"])
def plan(request, make_plan, write_run):
    """Five variants in two experiments: errors that are close, far apart with wide intervals, or all the same."""
    start, step = request.param
    plan = make_plan(STUDY)
    for number, run in enumerate(plan.runs):
        folder = write_run(run, error=min(99.0, start + step * ((number * 7) % 5)), per_digit=0.5)
        rows = [{"epoch": e, "train_accuracy": 0.2 * e, "validation_accuracy": 0.3 * e, "coupling_entropy": 0.9 / e}
                for e in (1, 2)]  # fmt: skip
        folder.write_metrics(rows)
    return plan


@pytest.fixture
def figures(plan, figure_of):
    return [figure_of(PLOTS[name], plan) for name in NAMES]


def test_all_text_lies_on_the_page_and_none_over_another(figures):
    found = [problem for name, figure in zip(NAMES, figures, strict=True) for problem in _problems(name, figure)]
    assert not found, "\n".join(found)


def _problems(name, figure):
    figure.canvas.draw()
    renderer, page = figure.canvas.get_renderer(), figure.bbox
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in _texts(figure) if text.get_text().strip()]
    assert len(boxes) > 10
    for said, box in boxes:
        if min(box.x0 - page.x0, page.x1 - box.x1, box.y0 - page.y0, page.y1 - box.y1) < -0.5:
            yield f"{name}: {said!r} lies outside"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        if min(min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)) > 2:
            yield f"{name}: {one!r} lies over {other!r}"


def _texts(figure):
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from axes.texts
        for axis in (axes.xaxis, axes.yaxis):
            yield axis.label
            for tick in axis._update_ticks():  # those that are drawn; the others keep old texts
                if tick.label1.get_visible():
                    yield tick.label1


def test_many_contrasts_have_their_text_on_the_page_too(make_plan, write_run, figure_of):
    variants = [f"capsnet-iterations{n}" for n in range(1, 9)]
    pairs = "".join(
        f'\n  - {{a: {a}, b: {b}, name: "variational Bayes, not dynamic routing of {a[-1]}, under loss {b[-1]}"}}'
        for a, b in itertools.combinations(variants, 2)
    )
    grid = "capsnet: {model: capsnet, grid: {routing.iterations: [1, 2, 3, 4, 5, 6, 7, 8]}}"
    plan = make_plan(f"{STUDY.split('variants:')[0]}variants:\n  {grid}\ncontrasts:\n f:{pairs}\n")
    for number, run in enumerate(plan.runs):
        write_run(run, error=20 + number % 7 + (50 if run.variant == variants[0] else 0), per_digit=0.5)
    figure = figure_of(PLOTS["contrasts"], plan)
    assert len(figure.axes) == 2
    assert not list(_problems("contrasts", figure))


def test_points_and_intervals_lie_within_their_axes_or_end_in_an_arrow(figures):
    for axis in [axis for figure in figures for axis in figure.axes]:
        (left, right), (bottom, top) = sorted(axis.get_xlim()), sorted(axis.get_ylim())
        for line in axis.lines:
            for x, y in line.get_xydata():
                assert left - 1e-9 <= x <= right + 1e-9, line.get_label()
                assert bottom - 1e-9 <= y <= top + 1e-9, line.get_label()
        cut = [line for line in axis.lines if line.get_label() == "cut"]
        assert all(line.get_marker() in CARETS for line in cut)


def test_log_axes_say_so(figures):
    for axis in [axis for figure in figures for axis in figure.axes]:
        for scale, label in ((axis.get_xscale(), axis.get_xlabel()), (axis.get_yscale(), axis.get_ylabel())):
            assert ("log scale" in label) == (scale == "log") or not label
