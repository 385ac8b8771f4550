import numpy as np
import pytest
from studies import MULTIDIGITS

from capsbench.analysis.plots import plot_error_by_variant, plot_routing_iterations


def test_routing_iterations_shows_accuracy_and_time(finished, figure_of):
    accuracy, time = figure_of(plot_routing_iterations, finished).axes
    assert accuracy.get_ylabel() == "test accuracy (%)"
    assert [label.get_text() for label in accuracy.get_xticklabels()] == ["1", "3"]
    np.testing.assert_allclose(accuracy.get_lines()[0].get_ydata(), [98.9, 98.6])
    np.testing.assert_allclose(time.get_lines()[0].get_ydata(), [45, 45])


def test_routings_are_lines_of_their_own(make_plan, write_run, figure_of):
    study = MULTIDIGITS.replace("{name: multidigits, validation_images: 100}", "{name: digits, validation_images: 100}")
    grid = (
        "grid: {routing: [{name: dynamic, iterations: 1}, {name: dynamic, iterations: 3}, {name: em, iterations: 1}]}"
    )
    plan = make_plan(study.replace("capsnet: {model: capsnet}", f"capsnet: {{model: capsnet, {grid}}}"))
    for run in plan.runs:
        write_run(run)
    _, time = figure_of(plot_routing_iterations, plan).axes
    named = [text.get_text() for text in time.get_legend().get_texts()]
    assert named == ["dynamic, with reconstruction", "EM, with reconstruction"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("decoder: [null, fully_connected]", ["without reconstruction", "with reconstruction"]),
        ("transform: [full, shared]", ["full transform, with reconstruction", "shared transform, with reconstruction"]),
    ],
)
def test_lines_are_named_by_what_differs(make_plan, study_text, write_run, figure_of, options, names):
    plan = make_plan(study_text.replace("grid: {", f"grid: {{{options}, "))
    for run in plan.runs:
        write_run(run)
    _, time = figure_of(plot_routing_iterations, plan).axes
    assert [text.get_text() for text in time.get_legend().get_texts()] == names


def test_iterations_may_be_an_option_of_the_network_itself(make_plan, study_text, write_run, figure_of):
    deepcaps = "  deepcaps: {model: deepcaps, grid: {iterations: [2, 4]}}\n"
    plan = make_plan(study_text + deepcaps)
    for run in plan.runs:
        write_run(run)
    accuracy, time = figure_of(plot_routing_iterations, plan).axes
    assert [label.get_text() for label in accuracy.get_xticklabels()] == ["1", "2", "3", "4"]
    named = [text.get_text() for text in time.get_legend().get_texts()]
    assert named == ["CapsNet, with reconstruction", "DeepCaps, with reconstruction"]


def test_many_networks_can_be_drawn(make_plan, write_run, figure_of):
    study = MULTIDIGITS.replace("{name: multidigits, validation_images: 100}", "{name: digits, validation_images: 100}")
    grid = (
        "grid: {routing: [dynamic, em, sparse], loss: [margin, spread, share_likelihood], routing.iterations: [1, 3]}"
    )
    plan = make_plan(study.replace("capsnet: {model: capsnet}", f"capsnet: {{model: capsnet, {grid}}}"))
    for number, run in enumerate(plan.runs):
        write_run(run, error=0.01 * (1 + number))
    assert len(figure_of(plot_routing_iterations, plan).axes[1].get_legend().get_texts()) == 9
    assert figure_of(plot_error_by_variant, plan).axes[0].get_xscale() == "log"
    assert len(figure_of(plot_error_by_variant, plan).axes[0].get_yticks()) >= 18
