import pytest

from capsbench.analysis.plots import plot_coupling_entropy


def test_entropy_by_epoch_and_by_iteration_of_a_run_that_was_diagnosed(plan, write_run, figure_of):
    steps = [{"iteration": 1, "entropy": 1.0}, {"iteration": 2, "entropy": 0.4}, {"iteration": 3, "entropy": 0.1}]
    folder = write_run(plan.cell("digits", "capsnet-iterations3", 0), stuck_at_chance=True, diagnostics=steps)
    rows = [
        {"epoch": e, "train_accuracy": 0.1, "validation_accuracy": 0.1, "coupling_entropy": 0.2 * e} for e in (1, 2)
    ]
    folder.write_metrics(rows)
    by_epoch, by_iteration = figure_of(plot_coupling_entropy, plan).axes
    (line,) = [line for line in by_epoch.lines if "seed 0: stuck" in line.get_label()]
    assert list(line.get_ydata()) == pytest.approx([0.2, 0.4])
    assert list(by_iteration.lines[0].get_xdata()) == [1, 2, 3]
    assert list(by_iteration.lines[0].get_ydata()) == [1.0, 0.4, 0.1]
    assert "iteration" in by_iteration.get_xlabel()


def test_without_couplings_the_plot_says_so(plan, write_run, figure_of):
    folder = write_run(plan.cell("digits", "capsnet-iterations3", 0))
    folder.write_metrics([{"epoch": 1, "train_accuracy": 0.1, "validation_accuracy": 0.1}])  # as of an older version
    (axis,) = figure_of(plot_coupling_entropy, plan).axes
    assert axis.texts[0].get_text().startswith("nothing to show: ")
