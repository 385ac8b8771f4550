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


def test_the_note_says_that_fronts_are_of_means_where_intervals_overlap(plan, write_run, figure_of):
    errors = {"capsnet-iterations1": 3.0, "capsnet-iterations3": 2.0, "cnn_matched": 4.0}
    seconds = {"capsnet-iterations1": 10.0, "capsnet-iterations3": 40.0, "cnn_matched": 20.0}
    for spread, overlap in ((0.01, False), (1.0, True)):
        for run in plan.runs:
            write_run(run, error=errors[run.variant] + spread * run.seed, seconds=seconds[run.variant])
        figure = figure_of(plot_accuracy_cost, plan)
        said = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
        assert ("Fronts are of means; intervals overlap" in said) == overlap


def test_the_legend_of_each_panel_names_the_front(make_plan, study_text, write_run, figure_of):
    text = study_text.replace(
        "variants:\n", "  pairs: {data: {name: multidigits, validation_images: 100}}\nvariants:\n", 1
    )
    plan = make_plan(text)
    for run in plan.runs:
        write_run(run, error=3.0 + run.seed)
    legends = figure_of(plot_accuracy_cost, plan).legends
    assert len(legends) == 2
    for legend in legends:
        assert "Pareto front" in [text.get_text() for text in legend.get_texts()]


def drawn(figure):
    (axis, _) = figure.axes
    intervals = [line.get_ydata() for line in axis.lines if line.get_label() == "interval"]
    cut = [line for line in axis.lines if line.get_label() == "cut"]
    return intervals, cut, " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def test_the_interval_of_a_single_variant_is_shown_whole(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text)
    for run in plan.runs:
        if run.variant == "cnn_matched":
            write_run(run, error=3.0 + 10 * run.seed)
    ((interval,), cut, note) = drawn(figure_of(plot_accuracy_cost, plan))
    assert interval[1] - interval[0] > 10
    assert not cut
    assert "arrow" not in note


def test_the_note_explains_an_arrow_where_an_interval_is_cut(plan, write_run, figure_of):
    errors = {"capsnet-iterations1": 10.0, "capsnet-iterations3": 10.1, "cnn_matched": 10.2}
    for run in plan.runs:
        write_run(run, error=errors[run.variant] + (3 * run.seed if run.variant == "cnn_matched" else run.seed / 10))
    _, cut, note = drawn(figure_of(plot_accuracy_cost, plan))
    assert cut
    assert "An arrow: goes on beyond the panel." in note
