"""Tables and plots of protocols, from results that are written by hand."""

import pytest

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import write_plots
from capsbench.analysis.plots.calibration import plot_calibration
from capsbench.analysis.plots.measured import plot_measured
from capsbench.analysis.plots.values import plot_values
from capsbench.analysis.table_names import table_names
from capsbench.analysis.tables import build_tables
from capsbench.analysis.tables.measured import spread_text
from capsbench.analysis.tables.text import MISSING

STUDY = """\
name: measured
seeds: [0, 1, 2]
training: {epochs: 2}
experiments: {digits: {data: {name: digits}}, pairs: {data: {name: multidigits}}}
variants: {caps: {model: capsnet, label: capsules}, cnn: {model: cnn_matched, label: CNN}}
evaluations: [accuracy, confusion, {name: routing, images: 50}, transforms, perturbation]
"""
ENTROPY = {0: 0.5, 1: 0.6, 2: 0.7}


def curve_of(values):
    return {"name": "error", "x": [1, 2, 3], "y": values, "x_label": "iterations", "y_label": "error (%)"}


@pytest.fixture
def plan(make_plan, write_run):
    plan = make_plan(STUDY)
    for run in plan.runs:
        write_run(run, error=10 + run.seed, per_digit=5.0 if run.experiment == "pairs" else None)
    return plan


@pytest.fixture
def measures(plan):
    """Capsules on digits were measured in all seeds; the CNN has no routing; nothing is known of pairs."""
    found = {}
    for run in plan.runs:
        if run.experiment == "pairs":
            continue
        result = {"status": "not applicable", "reason": "the network has no routing"}
        if run.variant == "caps":
            curves = [curve_of([30, 20, 10 + run.seed])]
            result = {"status": "ok", "entropy": ENTROPY[run.seed], "curves": curves, "options": {"images": 50}}
        matrix = [[9 if row == column else 0 for column in range(10)] for row in range(10)]
        matrix[3][5] = 1
        confusion = {"status": "ok", "most_confused_share": 100.0, "matrix": matrix, "classes": list("0123456789")}
        found[run.key] = {"routing": result, "confusion": confusion}
    return found


@pytest.fixture
def tables(plan, measures, results):
    return build_tables(plan, collect(plan, results), measures=measures)


def test_each_protocol_has_a_table_whatever_has_run(plan):
    assert {f"protocol-{name}" for name in ("confusion", "routing", "transforms", "perturbation")} <= set(
        table_names(plan)
    )
    assert "protocol-accuracy" not in table_names(plan)


def test_a_row_has_mean_and_spread_over_the_seeds_beside_the_test_error(tables):
    table = tables["protocol-routing"]
    (grid,) = table.grids
    (row,) = grid.rows
    shown = dict(zip(grid.columns, row.texts, strict=True))
    assert (shown["network"], shown["test error (%)"], shown["n"]) == ("capsules", "11.00 ± 1.00", "3 of 3")
    assert shown["coupling entropy"] == "0.600 ± 0.100"
    assert "agreement" not in shown  # a column in which no row says anything
    numbers = table.numbers.set_index(["experiment", "variant"])
    assert numbers.loc[("digits", "caps"), "entropy"] == pytest.approx(0.6)
    assert numbers.loc[("digits", "cnn"), "n"] == 0


def test_notes_say_where_it_does_not_apply_and_under_which_options(tables):
    notes = " ".join(tables["protocol-routing"].notes)
    assert "Not applicable to CNN (digits): the network has no routing" in notes
    assert "images 50" in notes


def test_notes_say_what_became_of_a_layer_and_where_the_machine_was_busy(plan, measures, results):
    for run in plan.runs:
        found = measures.get(run.key, {}).get("routing", {})
        if found.get("status") == "ok":
            found["in_words"] = ["the couplings are uniform"] if run.seed else []
            found["conditions"] = {"warning": "the machine was busy: a load of 9.0 on 2 cores"} | {"threads": 1}
    notes = build_tables(plan, collect(plan, results), measures=measures)["protocol-routing"].notes
    assert "The couplings are uniform: capsules (digits, 2 of 3)." in notes
    assert "The machine was busy: capsules (digits)." in notes


def test_a_protocol_without_results_gives_a_table_without_rows(tables):
    assert all(not grid.rows for grid in tables["protocol-transforms"].grids)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], MISSING),
        ([0.0, 0.0], "0 ± 0"),
        ([0.25], "0.250"),
        ([-0.5, -0.7], "−0.600 ± 0.141"),
        ([12.0, 14.0], "13.00 ± 1.41"),
        ([4000.0], "4,000"),
    ],
)
def test_numbers_have_the_digits_that_their_size_makes_worth_reading(values, text):
    assert spread_text(values) == text


def test_a_plot_has_a_line_per_variant_with_a_band_over_the_seeds(plan, measures, results):
    figure = plot_measured("routing", plan, collect(plan, results), measures)
    (axis,) = figure.axes
    (line,) = [line for line in axis.lines if line.get_label() == "caps"]
    assert list(line.get_ydata()) == [30, 20, 11]
    (band,) = axis.collections
    assert band.get_paths()[0].vertices[:, 1].min() == 10 and band.get_paths()[0].vertices[:, 1].max() == 30
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("iterations", "error (%)")
    assert all(tick == round(tick) for tick in axis.get_xticks())  # there are no 2.5 iterations


def test_titles_of_axes_stand_below_that_of_the_experiment(plan, measures, results):
    figure = plot_measured("routing", plan, collect(plan, results), measures)
    renderer = figure.canvas.get_renderer()
    (axis,), (experiment, _) = figure.axes, figure.texts
    title = axis.get_title(loc="left")
    assert title == "error"
    (drawn,) = [text for text in axis.get_children() if getattr(text, "get_text", str)() == title]
    assert drawn.get_window_extent(renderer).y1 < experiment.get_window_extent(renderer).y0


def test_seeds_with_other_x_have_lines_of_their_own(plan, measures, results):
    for place, found in enumerate(measures.values()):
        if "curves" in found["routing"]:
            found["routing"]["curves"][0]["x"] = [1 + place, 5, 6]
    (axis,) = plot_measured("routing", plan, collect(plan, results), measures).axes
    assert len(axis.lines) == 3 and not axis.collections
    assert "each has a line of its own" in " ".join(text.get_text().replace("\n", " ") for text in axis.figure.texts)


def test_a_curve_that_is_zero_everywhere_is_named_and_not_drawn(plan, measures, results):
    for found in measures.values():
        if "curves" in found["routing"]:
            found["routing"]["curves"].append(curve_of([0, 0, 0]) | {"name": "dead_parents"})
    figure = plot_measured("routing", plan, collect(plan, results), measures)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["error"]
    said = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    assert "lowest seed to the highest. Not drawn, as all values are 0: dead parents." in said
    for found in measures.values():
        if "curves" in found["routing"]:
            found["routing"]["curves"].pop(0)
    (axis,) = plot_measured("routing", plan, collect(plan, results), measures).axes  # else there was nothing
    assert axis.get_title(loc="left") == "dead parents"


def test_reliability_is_that_of_all_seeds_together_without_bins_of_a_few_images(plan, measures, results):
    rows = [(100, 20.0, 10.0), (300, 22.0, 30.0), (300, 26.0, 50.0)]  # the first two of the bin up to 25 %
    for run in plan.runs:
        if run.experiment == "digits" and run.variant == "caps":
            row = dict(zip(("predictions", "confidence", "accuracy"), rows[run.seed], strict=True))
            few = {"predictions": 1, "confidence": 80.0, "accuracy": 0.0}
            readings = {"logits": {"bins": [row, few]}}
            measures[run.key]["calibration"] = {"status": "ok", "readings": readings, "options": {"bins": 4}}
    (axis,) = plot_calibration(plan, None, collect(plan, results), measures).axes
    (line,) = [line for line in axis.lines if line.get_label() == "caps"]
    assert list(line.get_xdata()) == pytest.approx([21.5, 26.0])
    assert list(line.get_ydata()) == pytest.approx([25.0, 50.0])
    assert axis.get_xlabel() == "confidence, logits (%)"


@pytest.fixture
def probed(plan, measures):
    """Probes of capsules and of the CNN on digits; an untrained CNN was not probed."""
    for run in plan.runs:
        if run.key in measures:
            found = {"status": "ok", "accuracy": 90.0 + run.seed, "untrained_accuracy": 60.0, "network_accuracy": 91}
            if run.variant == "cnn":
                found = {"status": "ok", "accuracy": 80.0, "untrained_accuracy": None}
            measures[run.key]["linear_probe"] = found
    return measures


def test_numbers_without_curves_have_axes_each_and_a_row_per_network(plan, probed, results):
    figure = plot_values("linear_probe", plan, collect(plan, results), probed)
    axes = {axis.get_title(loc="left").replace("\n", " "): axis for axis in figure.axes}
    assert list(axes) == ["on poses or features (%)", "of an untrained copy (%)", "itself (%)"]
    first = axes["on poses or features (%)"]
    points = {line.get_label(): line for line in first.lines if line.get_label() in ("caps", "cnn")}
    assert list(points["caps"].get_xdata()) == [90, 91, 92] and list(points["cnn"].get_xdata()) == [80, 80, 80]
    assert [float(line.get_xdata()[0]) for line in first.lines if line.get_label().startswith("_")] == [91, 80]
    assert [text.get_text() for text in first.get_yticklabels()] == ["capsules", "CNN"]
    rows = [float(points[name].get_ydata()[0]) for name in ("caps", "cnn")]
    assert list(first.get_yticks()) == rows and rows[0] < rows[1] and first.yaxis_inverted()
    untrained = axes["of an untrained copy (%)"]
    assert [len(line.get_xdata()) for line in untrained.lines if line.get_label() in ("caps", "cnn")] == [3, 0]
    assert len({axis.get_xlim() for axis in axes.values()}) == 1  # all in %


def test_a_unit_whose_values_span_much_has_a_logarithmic_axis(plan, measures, results):
    for place, run in enumerate(run for run in plan.runs if run.key in measures):
        times = {"forward_ms": 1.0 + 9 * place, "training_step_ms": 100.0, "training_memory_mb": 50.0 + place}
        measures[run.key]["cost"] = {"status": "ok", **times}
    figure = plot_values("cost", plan, collect(plan, results), measures)
    scales = {axis.get_title(loc="left").replace("\n", " "): axis for axis in figure.axes}
    assert scales["forward (ms)"].get_xscale() == scales["training step (ms)"].get_xscale() == "log"
    assert scales["memory in training (MB)"].get_xscale() == "linear"
    assert scales["forward (ms)"].get_xlim() != scales["memory in training (MB)"].get_xlim()


def test_values_that_nobody_has_are_said_to_be_missing(plan, measures, results):
    assert "no finished run" in plot_values("cost", plan, collect(plan, results), measures).axes[0].texts[0].get_text()


def test_plots_of_protocols_are_written_with_the_others(plan, measures, results):
    names = {path.name for path in write_plots(plan, collect(plan, results), results / "plots", results, measures)}
    assert {"routing.png", "confusion.svg", "transforms.png", "perturbation.png"} <= names
    silent = (results / "plots/transforms.svg").read_text()
    assert "nothing to show: no finished run has curves" in silent
    assert "nothing to show" not in (results / "plots/confusion.svg").read_text()


def test_plots_of_protocols_for_one_experiment_show_it_alone(plan, measures, results):
    digits = {run.variant: run.key for run in plan.runs if run.experiment == "digits"}
    measures |= {run.key: measures[digits[run.variant]] for run in plan.runs if run.experiment == "pairs"}
    runs = collect(plan, results)
    write_plots(plan, runs, results / "whole", results, measures)
    write_plots(plan, runs, results / "part", results, measures, experiment="pairs")
    for name in ("routing", "confusion"):  # curves, and a figure of its own
        whole, part = ((results / folder / f"{name}.svg").read_text() for folder in ("whole", "part"))
        shown = [[title in drawing for title in ("(overlaid pairs", "handwritten digits")] for drawing in (whole, part)]
        assert shown == [[True, True], [True, False]], name
