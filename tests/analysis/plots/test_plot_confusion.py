import numpy as np
import pytest
from matplotlib import pyplot as plt

from capsbench.analysis.collect import collect
from capsbench.analysis.plots.confusion import plot_confusion

STUDY = """\
name: confused
seeds: [0, 1]
training: {epochs: 1}
experiments: {digits: {data: {name: digits}}}
variants: {caps: {model: capsnet, label: capsules}, cnn: {model: cnn_matched, label: CNN}}
evaluations: [accuracy, confusion]
"""
WRONG = {"caps": {(4, 9): 2, (5, 3): 1}, "cnn": {(4, 9): 6, (7, 2): 1}}  # of 20 images of each class
CLASSES = list("0123456789")


@pytest.fixture
def drawn(make_plan, write_run, results):
    """Draw the counts above, half of them in each seed; `classes` are the names."""

    def draw(wrong, classes=CLASSES):
        plan = make_plan(STUDY)
        measures = {}
        for run in plan.runs:
            write_run(run, error=5.0)
            matrix = 10.0 * np.eye(len(classes))
            for (true, predicted), count in wrong.get(run.variant, {}).items():
                matrix[true, predicted] += count / 2
                matrix[true, true] -= count / 2
            measures[run.key] = {"confusion": {"status": "ok", "matrix": matrix.tolist(), "classes": classes}}
        return plot_confusion(plan, results, collect(plan, results), measures)

    yield draw
    plt.close("all")


def shown(axis):
    """Return the written shares by row and column."""
    rows = [label.get_text() for label in axis.get_yticklabels()]
    columns = [label.get_text() for label in axis.get_xticklabels()]
    cells = {text.get_position(): text.get_text() for text in axis.texts}
    return rows, {name: [cells[(n, row)] for row in range(len(rows))] for n, name in enumerate(columns)}


def test_a_column_is_a_confusion_and_a_number_its_share_of_the_true_class_over_all_seeds(drawn):
    rows, columns = shown(drawn(WRONG).axes[0])
    assert rows == ["capsules", "CNN"]
    assert list(columns) == ["4→9", "5→3", "7→2"]  # the most frequent first, and none that never happened
    assert columns == {"4→9": ["10", "30"], "5→3": ["5.0", "0.0"], "7→2": ["0.0", "5.0"]}


def test_the_title_says_how_many_of_the_errors_are_shown(drawn):
    figure = drawn({"caps": {(n, m): 1 for n in range(4) for m in range(10) if n != m}, "cnn": {(9, 8): 20}})
    assert "12 of 90 confusions, 55 % of the errors" in figure.texts[0].get_text().replace("\n", " ")  # 20 + 11 of 56


def test_without_an_error_the_title_says_so(drawn):
    assert "no error" in drawn({}).texts[0].get_text()


def test_without_a_result_the_plot_says_so(make_plan, results):
    plan = make_plan(STUDY)
    (axis,) = plot_confusion(plan, results, collect(plan, results), {}).axes
    assert axis.texts[0].get_text().startswith("nothing to show")
