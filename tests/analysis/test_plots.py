from typing import get_args

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import (
    PLOTS,
    plot_error_by_variant,
    plot_learning_curves,
    plot_reconstructions,
    plot_routing_iterations,
    write_plots,
)
from capsbench.config import Plot

SAMPLES = np.arange(10 * 28 * 28, dtype=np.uint8).reshape(10, 1, 28, 28)  # as in conftest
PAIR_SOURCES = np.arange(9 * 2 * 36 * 36, dtype=np.uint8).reshape(9, 2, 1, 36, 36)


def write(plan, results):
    return write_plots(plan, results, results / plan.study.name / "plots")


CNN_ALONE = """\
name: plain
seeds: [0, 1]
training: {epochs: 2}
experiments: {digits: {data: {name: digits, validation_images: 100}}}
variants: {cnn_matched: {model: cnn_matched}}
"""


@pytest.fixture
def finished(plan, write_run):
    for number, run in enumerate(plan.runs):
        write_run(run, error=1.0 + number / 10)
    return plan


@pytest.fixture
def figure_of(results):
    yield lambda draw, plan: draw(plan, results, collect(plan, results))
    plt.close("all")


def says_nothing(path) -> bool:
    return "<!-- nothing to show: " in path.with_suffix(".svg").read_text()


def test_every_plot_that_a_study_may_name_exists():
    assert set(get_args(Plot)) == set(PLOTS)


def test_every_plot_is_written_as_png_and_svg(finished, results):
    paths = write(finished, results)
    assert {path.name for path in paths} == {f"{name}.{ending}" for name in PLOTS for ending in ("png", "svg")}
    for path in paths:
        assert path.parent == results / "small_study/plots"
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
        assert path.stat().st_size > 15_000  # a drawing: what says "nothing to show" is smaller
        assert not says_nothing(path)


def test_a_study_that_has_not_run_gets_plots_that_say_so(plan, results):
    paths = write(plan, results)
    assert len(paths) == 2 * len(PLOTS)
    assert all(says_nothing(path) for path in paths)


def test_plots_that_do_not_fit_a_study_say_so(make_plan, write_run, results):
    plan = make_plan(CNN_ALONE)
    for run in plan.runs:
        write_run(run)
    silent = {path.stem for path in write(plan, results) if says_nothing(path)}
    assert silent == {"routing_iterations", "reconstructions"}


def test_the_same_study_gives_the_same_bytes(finished, results):
    first, second = ({p.name: p.read_bytes() for p in write(finished, results)} for _ in range(2))
    assert first == second


def test_only_the_plots_that_are_named_are_drawn(make_plan, results):
    plan = make_plan(CNN_ALONE + "plots: [reconstructions]\n")
    assert {path.stem for path in write(plan, results)} == {"reconstructions"}


def test_no_figure_stays_open(finished, results):
    write(finished, results)
    assert plt.get_fignums() == []


def test_learning_curves_show_the_validation_error_of_each_variant(finished, figure_of):
    (axis,) = figure_of(plot_learning_curves, finished).axes
    assert axis.get_ylabel() == "validation error (%)"
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["capsnet-iterations1", "capsnet-iterations3", "cnn_matched"]
    drawn = axis.get_lines()[0].get_xydata()
    np.testing.assert_allclose(drawn, [[1, 20], [2, 10]])  # accuracies 0.8 and 0.9


def test_learning_curves_fall_back_to_the_training_error(finished, write_run, figure_of):
    folder = write_run(finished.runs[0])
    folder.write_metrics([{"epoch": 1, "train_accuracy": 0.75, "validation_accuracy": None}])
    (axis,) = figure_of(plot_learning_curves, finished).axes
    assert axis.get_ylabel() == "training error (%)"


def test_error_by_variant_shows_every_seed(finished, figure_of):
    (axis,) = figure_of(plot_error_by_variant, finished).axes
    points = [dots.get_offsets()[:, 0].tolist() for dots in axis.collections if isinstance(dots, PathCollection)]
    assert points == [pytest.approx([1.0, 1.1, 1.2]), pytest.approx([1.3, 1.4, 1.5]), pytest.approx([1.6, 1.7, 1.8])]
    assert [text.get_text() for text in axis.get_yticklabels()] == [
        "capsnet-iterations1", "capsnet-iterations3", "cnn_matched",
    ]  # fmt: skip


def test_routing_iterations_shows_accuracy_and_time(finished, figure_of):
    accuracy, time = figure_of(plot_routing_iterations, finished).axes
    assert accuracy.get_ylabel() == "test accuracy (%)"
    assert [label.get_text() for label in accuracy.get_xticklabels()] == ["1", "3"]
    np.testing.assert_allclose(accuracy.get_lines()[0].get_ydata(), [98.9, 98.6])
    np.testing.assert_allclose(time.get_lines()[0].get_ydata(), [45, 45])


def test_routings_are_lines_of_their_own(make_plan, write_run, figure_of):
    study = PAIRS.replace("{name: multidigits, validation_images: 100}", "{name: digits, validation_images: 100}")
    grid = "grid: {routing: [dynamic, em], iterations: [1, 3]}"
    plan = make_plan(study.replace("capsnet: {model: capsnet}", f"capsnet: {{model: capsnet, {grid}}}"))
    for run in plan.runs:
        write_run(run)
    _, time = figure_of(plot_routing_iterations, plan).axes
    named = [text.get_text() for text in time.get_legend().get_texts()]
    assert named == ["dynamic, with reconstruction", "em, with reconstruction"]


def test_many_networks_can_be_drawn(make_plan, write_run, figure_of):
    study = PAIRS.replace("{name: multidigits, validation_images: 100}", "{name: digits, validation_images: 100}")
    grid = "grid: {routing: [dynamic, em, sparse], loss: [margin, spread, share_likelihood], iterations: [1, 3]}"
    plan = make_plan(study.replace("capsnet: {model: capsnet}", f"capsnet: {{model: capsnet, {grid}}}"))
    for number, run in enumerate(plan.runs):
        write_run(run, error=0.01 * (1 + number))
    assert len(figure_of(plot_routing_iterations, plan).axes[1].get_legend().get_texts()) == 9
    assert figure_of(plot_error_by_variant, plan).axes[0].get_xscale() == "log"
    assert len(figure_of(plot_error_by_variant, plan).axes[0].get_yticks()) >= 18


def test_a_run_without_error_can_be_drawn(plan, write_run, results):
    folder = write_run(plan.runs[0], error=0.0)
    folder.write_metrics([{"epoch": 1, "train_accuracy": 1.0, "validation_accuracy": 1.0}])
    paths = write(plan, results)
    assert [path.stem for path in paths if says_nothing(path)] == []


PAIRS = """\
name: pairs
seeds: [0]
training: {epochs: 2}
experiments: {pairs: {data: {name: multidigits, validation_images: 100}}}
variants: {capsnet: {model: capsnet}, cnn: {model: cnn_matched}}
"""


def test_reconstructions_of_pairs_show_each_digit_below_the_pair(make_plan, write_run, figure_of):
    plan = make_plan(PAIRS)
    for run in plan.runs:
        write_run(run, per_digit=0.5)
    (axis,) = figure_of(plot_reconstructions, plan).axes  # of the network with a decoder alone
    assert [text.get_text() for text in axis.get_yticklabels()] == [
        "pair", "one digit", "one digit, reconstructed", "the other", "the other, reconstructed",
    ]  # fmt: skip
    drawn = axis.get_images()[0].get_array()
    assert drawn.shape == (5 * 37, 9 * 37)
    first = [drawn[row * 37 : row * 37 + 36, :36] for row in range(5)]
    np.testing.assert_array_equal(first[1], PAIR_SOURCES[0, 0, 0])
    np.testing.assert_array_equal(first[3], PAIR_SOURCES[0, 1, 0])
    np.testing.assert_array_equal(first[0], PAIR_SOURCES[0, :, 0].max(axis=0))
    np.testing.assert_array_equal(first[4], 255 - first[3])


def test_reconstructions_show_the_target_above_what_was_made_of_it(finished, figure_of):
    axes = figure_of(plot_reconstructions, finished).axes
    assert len(axes) == 2  # the CNN has no decoder
    assert [text.get_text() for text in axes[0].get_yticklabels()] == ["original", "reconstruction"]
    drawn = axes[0].get_images()[0].get_array()
    np.testing.assert_array_equal(drawn[:28, 29:57], SAMPLES[1, 0])
    np.testing.assert_array_equal(drawn[29:57, 29:57], 255 - SAMPLES[1, 0])


def test_panels_say_what_a_data_set_is(make_plan, write_run, figure_of):
    plan = make_plan(PAIRS.replace("pairs: {data: {name: multidigits", "affnist: {data: {name: affnist-generated"))
    write_run(plan.runs[0], familiar=1.0)
    (axis,) = figure_of(plot_learning_curves, plan).axes
    assert axis.get_title() == "affnist (affine images generated from MNIST)"
