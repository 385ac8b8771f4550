import functools
import itertools

import pytest
from matplotlib.markers import CARETLEFT, CARETRIGHT

from capsbench.analysis.plots import plot_contrasts
from capsbench.analysis.plots.forest import SAME, Row, forest_limits
from capsbench.analysis.plots.style import INK, QUIET

STUDY = """\
name: small_study
seeds: [0, 1, 2]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits, validation_images: 100}}
variants:
  capsnet: {model: capsnet, label: CapsNet, grid: {routing.iterations: [1, 2, 3, 5, 7]}}
  cnn: {model: cnn_matched}
"""
ERRORS = {  # of each seed
    "capsnet-iterations1": [2.0, 3.0, 4.0],
    "capsnet-iterations2": [1.6, 2.4, 3.5],
    "capsnet-iterations3": [2.2, 3.1, 4.3],
    "capsnet-iterations5": [2.0, 3.0, 4.0],
    "capsnet-iterations7": [80.0, 82.0, 81.0],
    "cnn": [1.0, 1.5, 2.6],
}


@pytest.fixture
def drawn(make_plan, write_run, figure_of):
    """Draw a study with an error in all runs; keywords replace what a variant's seeds ended with. stuck: at chance."""

    def draw(
        contrasts: str = "", study: str = STUDY, stuck: tuple[str, ...] = (), experiment: str | None = None, **ends
    ):
        plan = make_plan(study + (f"contrasts: {contrasts}\n" if contrasts else ""))
        for run in plan.runs:
            end = (ends.get(run.variant.replace("-", "_")) or ERRORS[run.variant])[run.seed]
            if isinstance(end, float):
                write_run(run, error=end, stuck_at_chance=run.variant in stuck)
            else:
                write_run(run, end)
        return figure_of(functools.partial(plot_contrasts, experiment=experiment), plan)

    return draw


def texts_of(axis) -> list[str]:
    return [text.get_text().replace("\n", " ").replace("\u00a0", " ") for text in axis.texts]


def marks(axis, marker) -> list[list[float]]:
    return [list(line.get_xdata()) for line in axis.lines if line.get_marker() == marker]


def legend_of(axis) -> list[str]:
    figure = axis.figure
    handles = [*figure.legends, *(each.get_legend() for each in figure.axes if each.get_legend())]
    return [text.get_text().replace("\n", " ") for legend in handles for text in legend.get_texts()]


def named_lines(axis, label: str) -> list:
    return [line for line in axis.lines if line.get_label() == label]


def named(axis, label: str) -> list[list[float]]:
    return [list(line.get_xdata()) for line in named_lines(axis, label)]


def test_a_line_per_contrast_under_its_family_with_every_seed(drawn):
    (axis,) = drawn("{iterations: {axis: routing.iterations}, size: [{a: cnn, b: capsnet-iterations3}]}").axes
    texts = texts_of(axis)
    names = [text for text in texts if text in ("iterations", "size") or ":" in text or "against" in text]
    assert names == [
        "iterations", "CapsNet: iterations 2 against 1", "CapsNet: iterations 3 against 1",
        "CapsNet: iterations 5 against 1", "CapsNet: iterations 7 against 1", "size",
        "cnn against CapsNet, iterations 3",
    ]  # fmt: skip
    assert marks(axis, "o")[0] == pytest.approx([-0.4, -0.6, -0.5])
    assert marks(axis, "D")[0] == pytest.approx([-0.5])
    assert "−0.50 [−0.75, −0.25]" in texts
    assert "identical in all three seeds" in texts
    assert named(axis, "zero") == [[0, 0]] * 5


def test_the_interval_is_drawn_from_end_to_end(drawn):
    (axis,) = drawn("{f: [{a: capsnet-iterations2, b: capsnet-iterations1}]}").axes
    half_width = 4.302653 * 0.1 / 3**0.5
    assert [-0.5 - half_width, -0.5 + half_width] == pytest.approx(named(axis, "interval")[0], abs=1e-6)
    low, high = axis.get_xlim()
    assert low < -0.5 - half_width
    assert high > 0


def test_a_line_far_wider_than_the_others_is_cut_with_an_arrow(drawn):
    (axis,) = drawn().axes  # 7 iterations: 78 points worse
    low, high = axis.get_xlim()
    assert high < 10
    assert marks(axis, CARETRIGHT) == [[high]]
    assert marks(axis, CARETLEFT) == []
    assert any(text.startswith("+78.00 [") for text in texts_of(axis))  # in numbers all the same
    inside = [x for line in axis.lines for x in line.get_xdata() if line.get_label() != "cut"]
    assert all(low <= x <= high for x in inside)


def test_a_line_that_is_cut_has_its_mean_at_the_edge_and_all_others_their_interval(drawn):
    """7 iterations, 15 points worse, are cut; 3 iterations, 3 points worse, are far out and yet no reason to cut."""
    errors = {"capsnet_iterations3": [5.0, 5.9, 7.2], "capsnet_iterations7": [17.0, 18.1, 19.3]}
    (axis,) = drawn(**errors).axes
    high = axis.get_xlim()[1]
    assert marks(axis, CARETRIGHT) == [[high]]
    assert "+15.13" in texts_of(axis)
    assert any(x == pytest.approx([3.0333], abs=1e-3) for x in marks(axis, "D"))
    assert high > 3.25


@pytest.mark.parametrize(("far", "most"), [((40.0,), 22.5), ((40.0, 30.0), 32.0)])
def test_a_few_rows_far_beyond_the_median_do_not_squeeze_the_others(far, most):
    """One row in six at most, even where the next one is more than half as far out."""
    sizes = [*far, 21.0, 12.0, 7.0, 4.0, 3.0, 2.0, 2.0, 2.0]
    _, high = forest_limits([Row("r", mean=size - 0.1, low=size - 0.2, high=size) for size in sizes])
    assert most / 1.1 < high < most
    wide = [
        Row("r", mean=1.0, low=0.0, high=size) for size in sizes
    ]  # if its end were cut, a mean might lie at the edge
    assert forest_limits(wide)[1] > 40.0


def test_a_contrast_declared_when_its_errors_were_known_is_marked(drawn):
    figure = drawn("{f: [{a: capsnet-iterations2, b: capsnet-iterations1, post_hoc: true}]}")
    assert "‡" in texts_of(figure.axes[0])
    assert any("‡: post hoc" in text.get_text() for text in figure.texts)
    assert not any("‡" in text.get_text() for text in drawn().texts)


def test_variants_at_chance_are_grey_and_do_not_widen_the_panel(drawn):
    """Three of four contrasts: more than are cut because they are far out."""
    names = ("capsnet-iterations3", "capsnet-iterations5", "capsnet-iterations7")
    chance = {name.replace("-", "_"): [89.0, 90.0, 91.0] for name in names}
    (axis,) = drawn(stuck=names, **chance).axes
    assert axis.get_xlim()[1] < 1
    assert len(marks(axis, CARETRIGHT)) == 3
    (diamond,) = (line for line in axis.lines if line.get_marker() == "D")
    assert (list(diamond.get_xdata()), diamond.get_color()) == (pytest.approx([-0.5]), INK)
    assert {line.get_color() for line in axis.lines if line.get_marker() == CARETRIGHT} == {QUIET}
    assert "a network stayed at chance" in legend_of(axis)
    assert "a network stayed at chance" not in legend_of(drawn().axes[0])


def test_where_all_are_at_chance_they_are_drawn_to_scale(drawn):
    (axis,) = drawn("{f: [{a: capsnet-iterations7, b: cnn}]}", stuck=("capsnet-iterations7",)).axes
    assert axis.get_xlim()[1] > 79
    assert marks(axis, CARETRIGHT) == []


def test_an_interval_not_twice_as_wide_as_the_others_is_not_cut(drawn):
    errors = {"capsnet_iterations3": [5.0, 5.9, 7.2], "capsnet_iterations7": [7.0, 8.1, 9.3]}
    (axis,) = drawn(**errors).axes
    assert marks(axis, CARETRIGHT) == []
    assert axis.get_xlim()[1] > 5.5


def test_a_filled_diamond_survives_holms_correction(drawn):
    """p = 0.013 alone, 0.026 or more in a family with another one."""
    faces = {}
    for contrasts in (
        "{f: [{a: capsnet-iterations2, b: capsnet-iterations1}]}",
        "{f: [{a: capsnet-iterations3, b: capsnet-iterations1}]}",  # p = 0.074
    ):
        (axis,) = drawn(contrasts).axes
        (diamond,) = (line for line in axis.lines if line.get_marker() == "D")
        faces[contrasts[8:30]] = diamond.get_markerfacecolor()
    assert list(faces.values()) == [INK, "white"]


def test_seeds_that_were_dropped_are_counted_beside_the_line(drawn):
    (axis,) = drawn(
        "{f: [{a: capsnet-iterations2, b: capsnet-iterations1}]}", capsnet_iterations2=[1.5, "diverged", 3.5]
    ).axes
    assert "−0.50 points 2 of 3 seeds" in texts_of(axis)
    assert marks(axis, "o") == [pytest.approx([-0.5, -0.5])]


def test_each_experiment_has_a_panel_with_its_own_scale(drawn):
    study = STUDY.replace("variants:\n", "  pairs: {data: {name: multidigits, validation_images: 100}}\nvariants:\n")
    figure = drawn("{f: [{a: capsnet-iterations2, b: capsnet-iterations1}]}", study)
    titles = [text.get_text() for text in figure.texts]
    assert "handwritten digits" in titles[0]
    assert titles[1].startswith("pairs")
    assert len({axis.get_xlim() for axis in figure.axes}) == 1  # the errors are the same in both


def test_nothing_lies_outside_a_page_with_twenty_contrasts(drawn):
    pairs = [(a, b) for a in ERRORS for b in ERRORS if a < b and "7" not in a + b]
    families = [f"g{n}: [{', '.join(f'{{a: {a}, b: {b}}}' for a, b in pairs)}]" for n in range(2)]
    assert len(pairs) == 10
    figure = drawn(f"{{{', '.join(families)}}}")
    renderer = figure.canvas.get_renderer()
    page = figure.bbox
    boxes = [text.get_window_extent(renderer) for axis in figure.axes for text in axis.texts]
    assert len(boxes) == 2 * 20 + 2
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 for box in boxes)
    names = sorted((box for box in boxes if box.x0 < page.width / 6), key=lambda box: -box.y1)
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in itertools.pairwise(names))  # none over another


@pytest.mark.parametrize("contrasts", ["{}", "{f: [{a: cnn, b: capsnet-iterations3}]}"])
def test_without_contrasts_or_runs_the_plot_says_so(make_plan, figure_of, contrasts):
    (axis,) = figure_of(plot_contrasts, make_plan(f"{STUDY}contrasts: {contrasts}\n")).axes
    assert texts_of(axis)[0].startswith("nothing to show: ")


def test_each_row_has_a_band_of_a_tenth_of_the_seconds_error(drawn):
    (axis,) = drawn("{f: [{a: capsnet-iterations2, b: capsnet-iterations1}, {a: cnn, b: capsnet-iterations3}]}").axes
    bands = [band.get_paths()[0].get_extents() for band in axis.collections if band.get_label() == "margin"]
    assert [(band.x0, band.x1) for band in bands] == [pytest.approx((-0.3, 0.3)), pytest.approx((-0.32, 0.32))]
    assert "band: ± a tenth of the second's error" in legend_of(axis)


def test_two_that_are_the_same_within_the_band_have_a_square_and_the_panel_holds_the_band(drawn):
    close = {"capsnet_iterations2": [2.01, 3.0, 3.99]}
    (axis,) = drawn("{f: [{a: capsnet-iterations2, b: capsnet-iterations1}]}", **close).axes
    (square,) = (line for line in axis.lines if line.get_marker() == SAME)
    assert (list(square.get_xdata()), square.get_markerfacecolor()) == (pytest.approx([0.0], abs=1e-9), "white")
    assert marks(axis, "D") == []
    low, high = axis.get_xlim()
    assert low < -0.3 and high > 0.3
    assert "the same within the band" in legend_of(axis)
    assert "the same within the band" not in legend_of(drawn().axes[0])


def test_rows_at_chance_have_no_band(drawn):
    (axis,) = drawn("{f: [{a: capsnet-iterations7, b: cnn}]}", stuck=("capsnet-iterations7",)).axes
    assert [band for band in axis.collections if band.get_label() == "margin"] == []
    assert not any("band" in label for label in legend_of(axis))


def test_an_experiment_that_has_not_run_has_no_panel(make_plan, write_run, figure_of):
    plan = make_plan(STUDY.replace("experiments:", "experiments:\n  later: {data: {name: affdigits}}"))
    for run in plan.runs:
        if run.experiment == "digits":
            write_run(run, error=ERRORS[run.variant][run.seed])
    (digits,) = figure_of(plot_contrasts, plan).axes
    assert digits.get_xlim() != (-1, 1)


BESIDE = """\
name: many
seeds: [0, 1, 2]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits, validation_images: 100}, variants: [capsnet, cnn]}
  pairs: {data: {name: multidigits, validation_images: 100}, variants: [capsnet]}
variants:
  capsnet: {model: capsnet, label: CapsNet, grid: {routing.iterations: [1, 2, 3, 4, 5, 6, 7, 8]}}
  cnn: {model: cnn_matched}
contrasts:
  of_iterations:
"""


def beside(number):
    """The contrasts of a study with so many of them in one family, and one that an experiment does not have."""
    pairs = list(itertools.combinations(range(1, 9), 2))
    lines = [
        f'    - {{a: capsnet-iterations{a}, b: capsnet-iterations{b}, name: "number {n}"}}'
        for n, (a, b) in enumerate(pairs[:number])
    ]
    return BESIDE + "\n".join(lines) + '\n  size:\n    - {a: cnn, b: capsnet-iterations3, name: "a CNN"}\n'


def test_many_contrasts_of_one_experiment_have_their_numbers_on_the_right(drawn):
    ends = {f"capsnet_iterations{n}": [9.0 - n, 10.0 - n, 11.0 - n] for n in range(1, 9)}
    (axis,) = drawn(study=beside(28), experiment="pairs", **ends).axes
    assert {f"number {n}" for n in range(28)} <= set(texts_of(axis))
    assert texts_of(axis).count("+1.00 points in every seed") == 7


def test_many_contrasts_stand_side_by_side_with_their_names_once(drawn):
    ends = {f"capsnet_iterations{n}": [9.0 - n, 10.0 - n, 11.0 - n] for n in range(1, 9)}
    left, right = drawn(study=beside(28), **ends).axes
    names = [*(f"number {n}" for n in range(28)), "a CNN"]
    assert [text for text in texts_of(left) if text in names] == names
    assert not set(texts_of(right)) & set(names)
    assert left.get_ylim() == right.get_ylim()
    rows_left, rows_right = ([line.get_ydata()[0] for line in named_lines(axis, "guide")] for axis in (left, right))
    assert len(rows_left) == 29
    assert rows_right == rows_left[:28]  # the last one is not compared on pairs
    assert marks(left, "D")[0] == pytest.approx([1.0])
    assert marks(left, "D")[-1] == pytest.approx([1.7 - 7.0])


def test_few_contrasts_stand_below_one_another(drawn):
    ends = {f"capsnet_iterations{n}": [9.0 - n, 10.0 - n, 11.0 - n] for n in range(1, 9)}
    figure = drawn(study=beside(5), **ends)
    assert figure.get_size_inches()[0] < 4
    assert "number 0" in texts_of(figure.axes[1])


def test_many_contrasts_of_many_experiments_have_names_on_the_left_and_numbers_on_the_right(drawn):
    more = "".join(f"  digits{n}: {{data: {{name: digits}}, variants: [capsnet]}}\n" for n in range(3))
    ends = {f"capsnet_iterations{n}": [9.0 - n, 10.0 - n, 11.0 - n] for n in range(1, 9)}
    figure = drawn(study=beside(28).replace("variants:\n  capsnet:", f"{more}variants:\n  capsnet:"), **ends)
    assert figure.get_size_inches()[0] > 6
    assert len(figure.axes) == 5
    lefts = [axis.get_position().x0 for axis in figure.axes]
    assert lefts == sorted(lefts)  # read down one column, then the next
    assert 1 < len(set(lefts)) < 5
    for axis in figure.axes:
        placed = {text.get_text(): text for text in axis.texts}
        assert "number 27" in placed
        assert placed["number 27"].get_position()[0] < 0 or placed["number 27"].xyann[0] < 0
        difference = placed["+7.00 points in every\nseed"]  # eight iterations against one
        assert difference.xy[0] == 1
        assert difference.xyann[0] > 0


def test_a_name_makes_room_for_wide_numbers():
    name = "CapsNet with decoder against a CNN of its size"
    assert Row(name, "+0.18 [+0.13, +0.23]").names == ["CapsNet with decoder against a CNN", "of its size"]
    assert Row(name, "+0.180 [+0.134, +0.226]").names == ["CapsNet with decoder against a", "CNN of its size"]
    assert Row(name).names == [name]
