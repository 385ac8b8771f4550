import numpy as np
from studies import MULTIDIGITS

from capsbench.analysis.plots import plot_learning_curves


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


def test_learning_curves_are_named_by_the_labels(make_plan, study_text, write_run, figure_of):
    plan = make_plan(study_text.replace("{model: capsnet,", "{model: capsnet, label: CapsNet,"))
    for run in plan.runs:
        write_run(run)
    (axis,) = figure_of(plot_learning_curves, plan).axes
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == list(dict.fromkeys(run.label for run in plan.runs))
    assert labels != list(dict.fromkeys(run.variant for run in plan.runs))


def test_panels_say_what_a_data_set_is(make_plan, write_run, figure_of):
    plan = make_plan(
        MULTIDIGITS.replace("pairs: {data: {name: multidigits", "affnist: {data: {name: affnist-generated")
    )
    write_run(plan.runs[0], familiar=1.0)
    (axis,) = figure_of(plot_learning_curves, plan).axes
    assert axis.get_title() == "affnist (affine images generated from MNIST)"
