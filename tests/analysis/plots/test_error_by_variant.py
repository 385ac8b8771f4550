import pytest
from matplotlib.markers import CARETRIGHT

from capsbench.analysis.plots import plot_error_by_variant


def lines(axis) -> dict:
    return {line.get_label(): line for line in axis.lines}


def test_error_by_variant_shows_every_seed(finished, figure_of):
    (axis,) = figure_of(plot_error_by_variant, finished).axes
    names = ["capsnet-iterations1", "capsnet-iterations3", "cnn_matched"]
    assert [list(lines(axis)[name].get_xdata()) for name in names] == [
        pytest.approx([1.0, 1.1, 1.2]), pytest.approx([1.3, 1.4, 1.5]), pytest.approx([1.6, 1.7, 1.8]),
    ]  # fmt: skip
    assert [text.get_text() for text in axis.get_yticklabels()] == names


def test_a_seed_is_joined_across_variants(finished, figure_of):
    (axis,) = figure_of(plot_error_by_variant, finished).axes
    for seed in (0, 1, 2):
        joined = lines(axis)[f"seed {seed}"].get_xydata()
        assert joined[:, 0] == pytest.approx([1.0 + seed / 10, 1.3 + seed / 10, 1.6 + seed / 10])
        assert list(joined[:, 1]) == sorted(axis.get_yticks())  # from top to bottom


def test_the_interval_is_the_95_percent_t_interval_of_the_mean(finished, figure_of):
    (axis,) = figure_of(plot_error_by_variant, finished).axes
    half_width = 4.302653 * 0.1 / 3**0.5
    assert list(lines(axis)["interval"].get_xdata()) == pytest.approx([1.7 - half_width, 1.7 + half_width], abs=1e-5)


def test_two_seeds_have_no_interval_and_a_label_says_what_became_of_the_others(plan, write_run, figure_of):
    for run in plan.runs:
        write_run(run, "diverged" if run.seed == 2 else "ok", error=1.0 + run.seed)
    (axis,) = figure_of(plot_error_by_variant, plan).axes
    assert "interval" not in lines(axis)
    said = [text.get_text().replace("\n", " ") for text in axis.get_yticklabels()]
    assert said[0] == "capsnet-iterations1 (1 of 3 diverged)"


def test_an_interval_that_would_dwarf_the_seeds_ends_in_an_arrow(plan, write_run, figure_of):
    for run in plan.runs:
        wide = run.variant == "cnn_matched"
        write_run(run, error=10.0 + (run.seed == 2) * 4 if wide else 10.0 + run.seed / 10)
    (axis,) = figure_of(plot_error_by_variant, plan).axes
    edge = axis.get_xlim()[1]
    arrows = [line for line in axis.lines if line.get_label() == "cut"]
    assert {line.get_marker() for line in arrows} <= {CARETRIGHT, CARETRIGHT - 1}
    high = 10 + 4 / 3 + 4.302653 * (16 / 3) ** 0.5 / 3**0.5
    assert (edge < high) == bool([line for line in arrows if line.get_marker() == CARETRIGHT])
    assert lines(axis)["interval"].get_xdata()[1] <= edge


def test_variants_have_their_labels(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text.replace("{model: cnn_matched}", "{model: cnn_matched, label: matched CNN}"))
    for run in plan.runs:
        write_run(run)
    (axis,) = figure_of(plot_error_by_variant, plan).axes
    assert axis.get_yticklabels()[-1].get_text() == "matched CNN"
