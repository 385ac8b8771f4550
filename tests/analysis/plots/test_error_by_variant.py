import pytest
from matplotlib.collections import PathCollection

from capsbench.analysis.plots import plot_error_by_variant


def test_error_by_variant_shows_every_seed(finished, figure_of):
    (axis,) = figure_of(plot_error_by_variant, finished).axes
    points = [dots.get_offsets()[:, 0].tolist() for dots in axis.collections if isinstance(dots, PathCollection)]
    assert points == [pytest.approx([1.0, 1.1, 1.2]), pytest.approx([1.3, 1.4, 1.5]), pytest.approx([1.6, 1.7, 1.8])]
    assert [text.get_text() for text in axis.get_yticklabels()] == [
        "capsnet-iterations1", "capsnet-iterations3", "cnn_matched",
    ]  # fmt: skip


def test_variants_have_their_labels(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text.replace("{model: cnn_matched}", "{model: cnn_matched, label: matched CNN}"))
    for run in plan.runs:
        write_run(run)
    (axis,) = figure_of(plot_error_by_variant, plan).axes
    assert axis.get_yticklabels()[-1].get_text() == "matched CNN"
