import numpy as np
from studies import MULTIDIGITS

from capsbench.analysis.plots import plot_reconstructions

SAMPLES = np.arange(10 * 28 * 28, dtype=np.uint8).reshape(10, 1, 28, 28)  # as in conftest
PAIR_SOURCES = np.arange(9 * 2 * 36 * 36, dtype=np.uint8).reshape(9, 2, 1, 36, 36)


def test_reconstructions_of_pairs_show_each_digit_below_the_pair(make_plan, write_run, figure_of):
    plan = make_plan(MULTIDIGITS)
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


def test_reconstructions_name_variant_and_seed(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text.replace("{model: capsnet,", "{model: capsnet, label: CapsNet,"))
    write_run(plan.runs[1])
    (axis,) = figure_of(plot_reconstructions, plan).axes
    assert plan.runs[1].label in axis.get_title()
    assert "seed 1" in axis.get_title()
