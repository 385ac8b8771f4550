import pytest

from capsbench.analysis.plots import pareto_front, plot_accuracy_cost


def test_the_front_is_what_nothing_cheaper_beats():
    costs, errors = [1.0, 2.0, 2.0, 3.0, 4.0], [5.0, 4.0, 3.0, 3.5, 1.0]
    assert pareto_front(costs, errors) == [0, 2, 4]
    assert pareto_front([2.0, 1.0], [1.0, 1.0]) == [1]
    assert pareto_front([], []) == []


def test_error_stands_against_time_per_image_and_parameters(plan, write_run, figure_of):
    costs = {
        "capsnet-iterations1": (3.0, 10.0, 100),
        "capsnet-iterations3": (2.0, 40.0, 200),
        "cnn_matched": (4.0, 20.0, 150),
    }
    for run in plan.runs:
        error, seconds, parameters = costs[run.variant]
        write_run(run, error=error + run.seed / 10, seconds=seconds, images=10_000, parameters=parameters)
    time, size = figure_of(plot_accuracy_cost, plan).axes
    sizes = {"capsnet-iterations1": 100, "capsnet-iterations3": 200, "cnn_matched": 150}
    for axis, expected in (
        (time, {"capsnet-iterations1": 1, "capsnet-iterations3": 4, "cnn_matched": 2}),
        (size, sizes),
    ):
        points = {line.get_label(): line.get_xydata()[0] for line in axis.lines if line.get_label() in costs}
        for variant, cost in expected.items():
            assert points[variant] == pytest.approx([cost, costs[variant][0] + 0.1])
        (front,) = [line for line in axis.lines if line.get_label() == "Pareto front"]
        assert list(front.get_xdata()) == [expected["capsnet-iterations1"], expected["capsnet-iterations3"]]
        assert axis.get_xscale() == "log"
