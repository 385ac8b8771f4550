import numpy as np
import pytest
from studies import MULTIDIGITS

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import plot_reconstructions

SAMPLES = np.arange(10 * 28 * 28, dtype=np.uint8).reshape(10, 1, 28, 28)  # as in conftest
PAIR_SOURCES = np.arange(9 * 2 * 36 * 36, dtype=np.uint8).reshape(9, 2, 1, 36, 36)


def rewrite(folder, **arrays) -> None:
    with np.load(folder.predictions_path) as found:
        np.savez(folder.predictions_path, **(dict(found) | arrays))


def said(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_a_reconstruction_stands_below_its_input_with_label_and_prediction(finished, figure_of):
    axes = figure_of(plot_reconstructions, finished).axes
    assert len(axes) == 2  # the CNN has no decoder
    names = [text.get_text() for text in axes[0].get_yticklabels()]
    assert names == ["label", "prediction", "input", "reconstruction"]
    drawn = axes[0].get_images()[0].get_array()
    assert drawn.shape == (2 * 29, 10 * 29, 3)
    for channel in range(3):
        np.testing.assert_array_equal(drawn[:28, 29:57, channel], SAMPLES[1, 0])
        np.testing.assert_array_equal(drawn[29:57, 29:57, channel], 255 - SAMPLES[1, 0])
    assert said(axes[0]) == [str(n // 2) for n in range(20)]  # label, prediction, label, ...
    assert axes[0].lines == [] or len(axes[0].lines) == 0


def test_what_is_wrong_is_framed_and_marked(plan, write_run, figure_of):
    folder = write_run(plan.runs[0])
    scores = np.eye(10, dtype=np.float32)
    scores[4] = scores[9]  # a 4 taken for a 9
    rewrite(folder, scores=scores)
    (axis,) = figure_of(plot_reconstructions, plan).axes
    assert said(axis)[8:10] == ["4", "9*"]
    assert sum("*" in text for text in said(axis)) == 1
    (frame,) = axis.lines
    assert 4 * 29 <= min(frame.get_xdata()) < max(frame.get_xdata()) <= 5 * 29


def test_the_two_digits_of_a_pair_have_two_colours(make_plan, write_run, figure_of):
    plan = make_plan(MULTIDIGITS)
    for run in plan.runs:
        write_run(run, per_digit=0.5)
    (axis,) = figure_of(plot_reconstructions, plan).axes  # of the network with a decoder alone
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert names == ["label", "prediction", "input", "its two digits", "reconstructions"]
    drawn = np.asarray(axis.get_images()[0].get_array(), dtype=int)
    assert drawn.shape == (3 * 37, 9 * 37, 3)
    np.testing.assert_array_equal(drawn[:36, :36, 0], PAIR_SOURCES[0, :, 0].max(axis=0))
    one, other = PAIR_SOURCES[0, :, 0].astype(int)
    overlaid = drawn[37:73, :36]
    alone = (other == 0) & (one > 100)
    assert (overlaid[alone][:, 0] > overlaid[alone][:, 2]).all()  # orange: more red than blue
    alone = (one == 0) & (other > 100)
    assert (overlaid[alone][:, 2] > overlaid[alone][:, 0]).all()
    assert said(axis)[:2] == ["0 1", "0 1"]


@pytest.mark.parametrize(
    ("predicted", "is_swapped"), [((0, 1), False), ((1, 5), True), ((0, 5), False), ((5, 6), False)]
)
def test_a_digit_keeps_its_colour_from_target_to_reconstruction(make_plan, write_run, figure_of, predicted, is_swapped):
    """Reconstructions follow the predicted classes, lowest first: the 1 of a pair 0 1 is their first in 1 5."""
    plan = make_plan(MULTIDIGITS)
    folder = write_run(plan.runs[0], per_digit=0.5)
    with np.load(folder.predictions_path) as found:
        scores, targets = found["scores"].copy(), found["sample_targets"]
    scores[0] = 0
    scores[0, list(predicted)] = 1
    black = np.zeros_like(targets)
    black[0, 0] = 255  # the first reconstruction is all ink, the second none
    rewrite(folder, scores=scores, sample_reconstructions=black)
    (axis,) = figure_of(plot_reconstructions, plan).axes
    red, _, blue = np.asarray(axis.get_images()[0].get_array(), dtype=int)[2 * 37, 0]
    assert (blue > red) == is_swapped


def test_reconstructions_name_variant_and_seed(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text.replace("{model: capsnet,", "{model: capsnet, label: CapsNet,"))
    write_run(plan.runs[1])
    title = figure_of(plot_reconstructions, plan).texts[0].get_text().replace("\n", " ")
    assert plan.runs[1].label in title
    assert "seed 1" in title


def test_without_run_folders_the_plot_says_so(finished, results):
    (axis,) = plot_reconstructions(finished, None, collect(finished, results)).axes
    assert "run folders" in axis.texts[0].get_text().replace("\n", " ")
