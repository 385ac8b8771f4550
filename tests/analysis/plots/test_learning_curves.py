import numpy as np
import pytest
from studies import MULTIDIGITS

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import plot_learning_curves


def texts(figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def legend_of(figure, place: int = 0) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in figure.legends[place].get_texts()]


def lines(axis) -> dict:
    return {line.get_label(): line for line in axis.lines}


def test_learning_curves_show_the_validation_error_of_each_variant(finished, figure_of):
    figure = figure_of(plot_learning_curves, finished)
    (axis,) = figure.axes
    assert axis.get_ylabel().startswith("validation error (%")
    assert "100 images held out" in texts(figure)
    assert legend_of(figure) == ["capsnet-iterations1", "capsnet-iterations3", "cnn_matched"]
    np.testing.assert_allclose(lines(axis)["capsnet-iterations1"].get_xydata(), [[1, 20], [2, 10]])  # 0.8 and 0.9


def test_learning_curves_fall_back_to_the_training_error(finished, write_run, figure_of):
    folder = write_run(finished.runs[0])
    folder.write_metrics([{"epoch": 1, "train_accuracy": 0.75, "validation_accuracy": None}])
    figure = figure_of(plot_learning_curves, finished)
    assert figure.axes[0].get_ylabel().startswith("training error (%")
    assert "training error: nothing is held out" in texts(figure)


def test_what_an_axis_shows_is_on_the_page_and_not_across_the_title(finished, write_run, figure_of):
    for run in finished.runs:
        accuracy = [0.1, 0.5, 0.9, 0.999, 1.0]  # a log scale, which cannot have zero
        write_run(run).write_metrics(
            [{"epoch": e, "train_accuracy": a, "validation_accuracy": a} for e, a in enumerate(accuracy, 1)]
        )
    figure = figure_of(plot_learning_curves, finished)
    (axis,) = figure.axes
    assert axis.get_ylabel() == "validation error (%, log; lowest 0)"
    figure.canvas.draw()
    label = axis.yaxis.label.get_window_extent()
    assert label.x0 > 0
    above = [text for text in figure.texts if text.get_window_extent().y0 > axis.get_window_extent().y1]
    assert above
    assert all(label.y1 < text.get_window_extent().y0 for text in above)


def test_learning_curves_are_named_by_the_labels(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text.replace("{model: capsnet,", "{model: capsnet, label: CapsNet,"))
    for run in plan.runs:
        write_run(run)
    labels = legend_of(figure_of(plot_learning_curves, plan))
    assert labels == list(dict.fromkeys(run.label for run in plan.runs))
    assert labels != list(dict.fromkeys(run.variant for run in plan.runs))


def test_panels_say_what_a_data_set_is(make_plan, write_run, figure_of):
    plan = make_plan(
        MULTIDIGITS.replace("pairs: {data: {name: multidigits", "affnist: {data: {name: affnist-generated")
    )
    write_run(plan.runs[0], familiar=1.0)
    assert "affnist (affine images generated from MNIST)" in texts(figure_of(plot_learning_curves, plan))


@pytest.mark.parametrize(
    ("by", "said"), [("object", "objects that training does not"), ("pair", "objects of the training")]
)
def test_panels_say_how_validation_images_were_drawn(make_plan, write_run, figure_of, by, said):
    study = MULTIDIGITS.replace(
        "multidigits, validation_images: 100", f"toynorb, options: {{validation_by: {by}}}, validation_images: 100"
    )
    plan = make_plan(study)
    write_run(plan.runs[0])
    assert said in texts(figure_of(plot_learning_curves, plan))


def test_a_panel_has_at_most_eight_lines_and_all_of_an_experiment_one_scale(make_plan, write_run, figure_of):
    plan = make_plan(
        MULTIDIGITS.replace(
            "{model: capsnet}", "{model: capsnet, grid: {training.epochs: [1, 2, 3, 4, 5, 6, 7, 8, 9]}}"
        )
    )
    for run in plan.runs:
        write_run(run, per_digit=1.0)
    figure = figure_of(plot_learning_curves, plan)
    assert [len(axis.lines) for axis in figure.axes] == [5, 5]
    assert len({axis.get_ylim() for axis in figure.axes}) == 1
    assert "1 of 2" in texts(figure)


def test_a_stuck_and_a_diverged_run_are_lines_of_their_own_and_not_in_the_mean(finished, write_run, figure_of):
    for run, status, record in (
        (finished.runs[0], "ok", {"stuck_at_chance": True}),
        (finished.runs[1], "diverged", {}),
    ):
        folder = write_run(run, status, **record)
        folder.write_metrics([{"epoch": e, "train_accuracy": 0.1, "validation_accuracy": 0.1} for e in (1, 2)])
    figure = figure_of(plot_learning_curves, finished)
    found = lines(figure.axes[0])
    np.testing.assert_allclose(found["capsnet-iterations1"].get_ydata(), [20, 10])  # of the third run alone
    for name in ("capsnet-iterations1, seed 0: stuck", "capsnet-iterations1, seed 1: diverged"):
        np.testing.assert_allclose(found[name].get_ydata(), [90, 90])
    assert found["stuck"].get_marker() != found["diverged"].get_marker()
    assert legend_of(figure)[0] == "capsnet-iterations1 (1 diverged, 1 stuck)"


def test_without_run_folders_the_plot_says_so(finished, results):
    (axis,) = plot_learning_curves(finished, None, collect(finished, results)).axes
    assert "run folders" in axis.texts[0].get_text().replace("\n", " ")
