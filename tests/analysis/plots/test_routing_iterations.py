import numpy as np
import pytest
from studies import MULTIDIGITS

from capsbench.analysis.plots import plot_error_by_variant, plot_routing_iterations


def names_of(figure) -> list[str]:
    return [
        text.get_text().replace("-\n", "-").replace("\n", " ")
        for legend in figure.legends
        for text in legend.get_texts()
    ]


def line_of(axis, name):
    (line,) = [line for line in axis.lines if line.get_label() == name]
    return line


def test_routing_iterations_shows_error_and_time_on_a_numeric_axis(finished, figure_of):
    error, time = figure_of(plot_routing_iterations, finished).axes
    assert error.get_ylabel().startswith("test error (%")
    np.testing.assert_allclose(line_of(error, "capsnet").get_xydata(), [[1, 1.1], [3, 1.4]])
    assert list(error.get_xticks()) == [1, 2, 3]
    milliseconds = 1000 * 90 / (2 * 1158)
    np.testing.assert_allclose(line_of(time, "capsnet").get_ydata(), [milliseconds, milliseconds])
    seeds = [line for line in error.lines if line.get_label() == "seeds"]
    assert sorted(seeds[0].get_ydata()) == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])


def test_routings_are_lines_of_their_own(make_plan, write_run, figure_of):
    study = MULTIDIGITS.replace("{name: multidigits, validation_images: 100}", "{name: digits, validation_images: 100}")
    grid = (
        "grid: {routing: [{name: dynamic, iterations: 1}, {name: dynamic, iterations: 3}, {name: em, iterations: 1}, "
        "{name: em, iterations: 2}]}"
    )
    plan = make_plan(study.replace("capsnet: {model: capsnet}", f"capsnet: {{model: capsnet, {grid}}}"))
    for run in plan.runs:
        write_run(run)
    assert names_of(figure_of(plot_routing_iterations, plan)) == ["capsnet-dynamic", "capsnet-em"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("decoder: [null, fully_connected]", ["CapsNet, no decoder", "CapsNet, decoder fully connected"]),
        ("transform: [full, shared]", ["CapsNet, transform full", "CapsNet, transform shared"]),
    ],
)
def test_lines_have_the_labels_of_the_variants_without_iterations(
    make_plan, study_text, write_run, figure_of, options, names
):
    plan = make_plan(
        study_text.replace("{model: capsnet, grid: {", f"{{model: capsnet, label: CapsNet, grid: {{{options}, ")
    )
    for run in plan.runs:
        write_run(run)
    assert names_of(figure_of(plot_routing_iterations, plan)) == names


def test_one_number_of_iterations_is_no_curve(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text.replace("[1, 3]", "[3]"))
    for run in plan.runs:
        write_run(run)
    (axis,) = figure_of(plot_routing_iterations, plan).axes
    assert axis.texts[0].get_text().startswith("nothing to show: ")


def test_iterations_may_be_an_option_of_the_network_itself(make_plan, study_text, write_run, figure_of):
    deepcaps = "  deepcaps: {model: deepcaps, grid: {iterations: [2, 4]}}\n"
    plan = make_plan(study_text + deepcaps)
    for run in plan.runs:
        write_run(run)
    figure = figure_of(plot_routing_iterations, plan)
    assert list(figure.axes[0].get_xticks()) == [1, 2, 3, 4]
    assert names_of(figure) == ["capsnet", "deepcaps"]


def test_many_networks_can_be_drawn(make_plan, write_run, figure_of):
    study = MULTIDIGITS.replace("{name: multidigits, validation_images: 100}", "{name: digits, validation_images: 100}")
    grid = (
        "grid: {routing: [dynamic, em, sparse], loss: [margin, spread, share_likelihood], routing.iterations: [1, 3]}"
    )
    plan = make_plan(study.replace("capsnet: {model: capsnet}", f"capsnet: {{model: capsnet, {grid}}}"))
    for number, run in enumerate(plan.runs):
        write_run(run, error=0.01 * (1 + number))
    assert len(names_of(figure_of(plot_routing_iterations, plan))) == 9
    assert figure_of(plot_error_by_variant, plan).axes[0].get_xscale() == "log"
    assert len(figure_of(plot_error_by_variant, plan).axes[0].get_yticks()) >= 18
