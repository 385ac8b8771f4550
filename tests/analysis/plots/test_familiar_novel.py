import pytest
from studies import NOVEL

from capsbench.analysis.plots import plot_familiar_novel


def test_matched_runs_are_joined_at_equal_seeds(make_plan, write_run, figure_of):
    plan = make_plan(NOVEL)
    for run in plan.runs:
        capsules = run.variant == "capsules"
        write_run(run, error=13.0 + run.seed if capsules else 20.0 + run.seed, familiar=3.7 + run.seed / 10)
    (axis,) = figure_of(plot_familiar_novel, plan).axes
    points = {line.get_label(): line.get_xydata() for line in axis.lines if line.get_label() in ("capsules", "cnn")}
    assert points["capsules"][1] == pytest.approx([3.8, 14.0])
    joined = [line.get_xydata() for line in axis.lines if line.get_label() == "matched"]
    assert len(joined) == 3
    assert joined[0][0] == pytest.approx([3.7, 20.0])
    assert joined[0][1] == pytest.approx([3.7, 13.0])
    assert "familiar" in axis.get_xlabel()
    assert "novel" in axis.get_ylabel()


def test_without_a_familiar_test_the_plot_says_so(finished, figure_of):
    (axis,) = figure_of(plot_familiar_novel, finished).axes
    assert axis.texts[0].get_text().startswith("nothing to show: ")
