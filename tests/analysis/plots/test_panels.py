"""The layout of figures: one column, and columns side by side where one would be a strip."""

import pytest

from capsbench.analysis.plots.panels import Panel, lay_out
from capsbench.analysis.plots.style import WIDTH


def boxes(figure, axes):
    """Return the axes of each panel as (left, bottom, width, height) in inches."""
    wide, high = figure.get_size_inches()
    places = [axis.get_position() for row in axes for axis in row]
    return [(p.x0 * wide, p.y0 * high, p.width * wide, p.height * high) for p in places]


def columns_of(figure, axes):
    return [int(left // WIDTH) for left, *_ in boxes(figure, axes)]


def test_what_is_no_strip_stands_in_one_column():
    figure, axes = lay_out([Panel(f"panel {n}", 2.0) for n in range(3)])
    assert figure.get_size_inches()[0] == pytest.approx(WIDTH)
    bottoms = [bottom for _, bottom, *_ in boxes(figure, axes)]
    assert bottoms == sorted(bottoms, reverse=True)


def test_a_strip_is_cut_into_columns_of_about_a_page():
    figure, axes = lay_out([Panel(f"panel {n}", 2.0) for n in range(12)], note="a note below everything")
    wide, high = figure.get_size_inches()
    assert wide == pytest.approx(3 * WIDTH)
    assert high < 1.6 * wide
    assert columns_of(figure, axes) == sorted(columns_of(figure, axes))
    assert all(width == pytest.approx(boxes(figure, axes)[0][2]) for *_, width, _ in boxes(figure, axes))
    titles = {text.get_text(): text.get_position() for text in figure.texts}
    note = titles.pop("a note below everything")
    for (left, bottom, width, height), (x, y) in zip(boxes(figure, axes), titles.values(), strict=True):
        assert left // WIDTH == x * wide // WIDTH  # the title is in the column of its panel, above it
        assert y * high >= bottom + height
        assert note[1] * high < bottom
        assert left + width < (left // WIDTH + 1) * WIDTH
    assert high - 0.3 < max(bottom + height for _, bottom, _, height in boxes(figure, axes)) < high


def test_panels_without_a_title_stay_below_that_of_theirs():
    panels = [Panel("" if n % 3 else f"group {n // 3}", 1.2) for n in range(12)]
    figure, axes = lay_out(panels)
    found = columns_of(figure, axes)
    assert len(set(found)) > 1
    for start in range(0, 12, 3):
        assert len(set(found[start : start + 3])) == 1


def test_a_group_that_would_be_a_strip_itself_is_cut():
    figure, axes = lay_out([Panel("" if n else "one group", 1.2) for n in range(20)])
    found = columns_of(figure, axes)
    assert len(set(found)) > 1
    assert found == sorted(found)


def test_a_column_that_would_gain_little_is_left_out():
    panels = [Panel("a very high one", 9.0), *(Panel(f"small {n}", 0.3) for n in range(3))]
    figure, axes = lay_out(panels)
    assert columns_of(figure, axes) == [0, 1, 1, 1]
    four, axes = lay_out([Panel(f"panel {n}", 4.0) for n in range(4)])  # three columns would be as high as two
    assert columns_of(four, axes) == [0, 0, 1, 1]


def test_legends_stay_in_the_column_of_their_panel():
    from matplotlib.lines import Line2D

    panels = [Panel(f"panel {n}", 2.0, legend=[Line2D([], [], label=f"line {n}")]) for n in range(12)]
    figure, axes = lay_out(panels)
    wide = figure.get_size_inches()[0]
    figure.canvas.draw()
    places = [legend.get_window_extent().x0 / figure.dpi // WIDTH for legend in figure.legends]
    assert places == columns_of(figure, axes)
    assert max(places) == round(wide / WIDTH) - 1
