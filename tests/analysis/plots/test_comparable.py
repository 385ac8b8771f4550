"""What is compared across the panels of a figure looks as far apart as it is."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from studies import MULTIDIGITS

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import plot_coupling_entropy, plot_learning_curves, plot_routing_iterations
from capsbench.analysis.plots.curves import MOST_LINES, in_parts
from capsbench.analysis.plots.forest import Row, draw_beside
from capsbench.analysis.plots.measured import plot_measured
from capsbench.analysis.plots.style import Look, looks


def said(figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def look(method: int) -> Look:
    return Look(method, "k", "o", "full", "-")


def test_panels_of_eight_lines_break_between_methods():
    styles = {f"{name}{n}": look(method) for method, name in enumerate("abc") for n in range(5)}
    assert [part for part, _ in in_parts(list(styles), styles)] == [[f"{name}{n}" for n in range(5)] for name in "abc"]
    assert [which for _, which in in_parts(list(styles), styles)] == [", 1 of 3", ", 2 of 3", ", 3 of 3"]
    alone = {f"v{n}": look(n) for n in range(MOST_LINES + 2)}
    assert [len(part) for part, _ in in_parts(list(alone), alone)] == [5, 5]
    long = {f"v{n}": look(0) for n in range(MOST_LINES + 2)}  # of one method more than a panel holds
    assert [len(part) for part, _ in in_parts(list(long), long)] == [MOST_LINES, 2]


def curves(name: str, x: list[float], y: list[float]) -> dict:
    return {"routing": {"curves": [{"name": name, "x_label": "eps", "y_label": "error (%)", "x": x, "y": y}]}}


@pytest.fixture
def many(make_plan, write_run):
    """A study of ten networks, in two panels."""
    plan = make_plan(
        MULTIDIGITS.replace("{model: capsnet}", "{model: capsnet, grid: {options.conv_channels: [8, 9]}}").replace(
            "options.conv_channels: [8, 9]", f"conv_channels: {list(range(8, 18))}"
        )
    )
    for run in plan.runs:
        write_run(run, per_digit=1.0)
    return plan


def test_all_panels_of_a_curve_have_one_scale(many, results):
    ends = {run.key: float(place) for place, run in enumerate(many.runs)}
    measures = {key: curves("FGSM", [0, 1], [0.0, end]) for key, end in ends.items()}
    figure = plot_measured("routing", many, collect(many, results), measures)
    assert len(figure.axes) == 2
    assert len({axis.get_ylim() for axis in figure.axes}) == 1
    assert figure.axes[0].get_ylim()[1] > max(ends.values())
    plt.close("all")


@pytest.mark.parametrize(
    ("x", "places"), [([0, 0.02, 0.1, 0.5], [0, 1, 2, 3]), ([0, 0.1, 0.2, 0.3], [0, 0.1, 0.2, 0.3])]
)
def test_few_places_have_their_ticks_and_none_stands_on_another(many, results, x, places):
    measures = {run.key: curves("FGSM", x, [1.0, 2.0, 3.0, 4.0]) for run in many.runs}
    figure = plot_measured("routing", many, collect(many, results), measures)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == [f"{value:g}" for value in x]
    assert list(axis.lines[0].get_xdata()) == list(axis.get_xticks()) == pytest.approx(places)
    assert ("equal distances" in said(figure)) == (places != x)
    plt.close("all")


@pytest.mark.parametrize(("low", "bottom"), [(0.99, 0.99), (0.5, 0.0)])
def test_couplings_near_to_uniform_are_seen_to_move(plan, write_run, figure_of, low, bottom):
    for run in plan.runs:
        rows = [
            {"epoch": e, "train_accuracy": 0.5, "validation_accuracy": 0.5, "coupling_entropy": entropy}
            for e, entropy in ((1, 1.0), (2, low))
        ]
        write_run(run).write_metrics(rows)
    figure = figure_of(plot_coupling_entropy, plan)
    assert figure.axes[0].get_ylim()[0] == pytest.approx(bottom, abs=0.1 * (1 - bottom))
    assert ("do not begin at 0" in said(figure)) == (bottom > 0)


def test_a_mean_over_seeds_ends_with_the_first_of_them(plan, write_run, figure_of):
    for run in plan.runs:
        last = 4 if run.variant == "cnn_matched" and run.seed == 0 else 2
        rows = [{"epoch": e, "train_accuracy": 0.1 * e, "validation_accuracy": 0.1 * e} for e in range(1, last + 1)]
        write_run(run).write_metrics(rows)
    figure = figure_of(plot_learning_curves, plan)
    (axis,) = figure.axes
    (mean,) = [line for line in axis.lines if line.get_label() == "cnn_matched"]
    (alone,) = [line for line in axis.lines if line.get_label() == "goes on"]
    assert list(mean.get_xdata()) == [1, 2]
    assert list(alone.get_xdata()) == [2, 3, 4]
    assert "trained longer" in said(figure)


def test_many_rows_show_small_and_large_differences_on_one_scale():
    """A tenth of a point beside fifty: each lies apart from 0 and inside the panel."""
    rows = [Row(f"r{n}", mean=mean, low=mean, high=mean, margin=0.2) for n, mean in enumerate((0.1, -8.0, 50.0))]
    figure, axis = plt.subplots()
    draw_beside([axis], [rows])
    low, high = axis.get_xlim()
    assert low < -8 and high > 50
    places = axis.transAxes.inverted().transform(axis.transData.transform([(x, 0) for x in (-8, 0, 0.1, 50)]))[:, 0]
    assert places[0] > 0.03 and places[3] < 0.97
    assert places[2] - places[1] > 0.05
    assert np.diff(places).min() > 0
    plt.close(figure)


OWN = """\
name: own
seeds: [0]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits}, variants: [capsnet, one]}
  pairs: {data: {name: multidigits}, variants: [capsnet, two]}
variants:
  capsnet: {model: capsnet}
  one: {model: cnn_matched, label: CNN}
  two: {model: resnet20, label: CNN}
"""


@pytest.mark.parametrize("values", [(-0.3, 0.1, 0.5), (-3.0, 1.0, 5.0), (0.0, 40.0, 90.0)])
def test_a_panel_of_many_rows_has_numbers_on_both_sides_of_0(values):
    rows = [Row(f"r{n}", mean=mean, low=mean, high=mean, margin=max(values) / 2.5) for n, mean in enumerate(values)]
    figure, axis = plt.subplots(figsize=(1.5, 2))
    draw_beside([axis], [rows])
    low, high = axis.get_xlim()
    shown = [tick for tick in axis.get_xticks() if low <= tick <= high]
    assert min(shown) < 0 < max(shown)
    plt.close(figure)


def test_what_each_data_set_has_its_own_of_looks_the_same(make_plan):
    found = looks(make_plan(OWN))
    assert found["one"] == found["two"]
    assert found["one"].color != found["capsnet"].color
    third = OWN.replace("[capsnet, two]", "[capsnet, two, three]") + "  three: {model: cnn_matched, label: other}\n"
    assert looks(make_plan(third))["three"].color not in {found["one"].color, found["capsnet"].color}
    both = looks(make_plan(OWN.replace("[capsnet, two]", "[one, two]")))  # which stand side by side
    assert both["one"].color != both["two"].color


def test_times_are_medians_and_runs_at_chance_are_counted(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text)
    for run in plan.runs:
        slow = run.seed == 0
        write_run(run, seconds=90.0 if slow else 9.0, stuck_at_chance=slow and run.variant == "capsnet-iterations3")
    figure = figure_of(plot_routing_iterations, plan)
    (line,) = [line for line in figure.axes[1].lines if line.get_label() == "capsnet"]
    assert list(line.get_ydata()) == pytest.approx([1000 * 9 / (2 * 1158)] * 2)
    (text,) = figure.legends[0].get_texts()
    assert "(1 of 6 runs stuck at chance)" in text.get_text().replace("\n", " ")


def test_reliability_stays_on_its_diagonal_and_gaps_are_left_out(many, results):
    measures = {}
    for run in many.runs:
        found = curves("reliability", [62.0, 81.0, 93.0, 99.0], [60.0, float("nan"), 90.0, 98.0])
        found["routing"]["curves"][0]["x_label"] = "confidence (%)"
        measures[run.key] = found
    figure = plot_measured("routing", many, collect(many, results), measures)
    assert list(figure.axes[0].lines[0].get_xdata()) == [62.0, 81.0, 93.0, 99.0]
    assert figure.axes[0].get_xlim() == (-4, 104)
    plt.close("all")


def test_uniform_couplings_are_not_shown_as_rounding(plan, write_run, figure_of):
    for run in plan.runs:
        rows = [{"epoch": 1, "train_accuracy": 0.5, "validation_accuracy": 0.5, "coupling_entropy": 0.9999994}]
        write_run(run).write_metrics(rows)
    assert figure_of(plot_coupling_entropy, plan).axes[0].get_ylim()[0] < 0
