import pytest
from studies import FULL

from capsbench.analysis.plots import plot_published
from capsbench.analysis.plots.style import QUIET, looks


def words(figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for axis in figure.axes for text in axis.texts)


@pytest.fixture
def drawn(make_plan, write_run, figure_of):
    def draw(errors, study=FULL, **keywords):
        plan = make_plan(study)
        for run, error in zip(plan.runs, errors, strict=True):
            write_run(run, error=error, **keywords)
        return plan, figure_of(plot_published, plan)

    return draw


def test_the_difference_its_interval_and_every_seed_are_drawn(drawn):
    plan, figure = drawn([0.30, 0.32, 0.34])  # the paper: 0.25
    (axis,) = figure.axes
    (diamond,) = [line for line in axis.lines if line.get_marker() == "D"]
    assert diamond.get_xdata() == pytest.approx([0.07])
    assert diamond.get_color() == looks(plan)["capsnet"].color
    (seeds,) = [line for line in axis.lines if line.get_marker() == "o"]
    assert seeds.get_xdata() == pytest.approx([0.05, 0.07, 0.09])
    (line,) = [line for line in axis.lines if line.get_label() == "interval"]
    low, high = line.get_xdata()
    assert low < 0.05 < 0.09 < high
    assert "0.25" in words(figure)
    assert "S17" in words(figure)


def bands(figure) -> list:
    return [band for axis in figure.axes for band in axis.collections if band.get_label() == "margin"]


def legend(figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for part in figure.legends for text in part.get_texts())


def test_the_band_is_drawn_where_rows_are_compared_alone(drawn):
    compared = drawn([0.30, 0.32, 0.34])[1]
    ends = [band.get_paths()[0].get_extents().x1 for band in bands(compared)]
    assert ends == pytest.approx([0.055])  # margin and rounding
    assert "counts as the same" in legend(compared)
    assert "not comparable" not in legend(compared)
    apart = drawn([0.30, 0.32, 0.34], FULL.replace("{name: mnist}", "{name: mnist, train_images: 5000}"))[1]
    assert bands(apart) == []
    assert "not comparable" in legend(apart)
    assert "counts as the same" not in legend(apart)


def test_what_cannot_be_compared_is_grey_and_says_so(drawn):
    _, figure = drawn([0.30, 0.32, 0.34], FULL.replace("{name: mnist}", "{name: mnist, train_images: 5000}"))
    (diamond,) = [line for line in figure.axes[0].lines if line.get_marker() == "D"]
    assert diamond.get_color() == QUIET
    assert diamond.get_markerfacecolor() == "white"
    assert "not comparable" in words(figure)


def test_a_study_on_other_data_says_that_nothing_is_published(drawn):
    _, figure = drawn([3.0, 3.1, 3.2], FULL.replace("{name: mnist}", "{name: digits}"))
    assert words(figure).startswith("nothing to show: ")
