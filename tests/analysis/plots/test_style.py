import itertools

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb

from capsbench.analysis.plots import PLOTS, plot_error_by_variant
from capsbench.analysis.plots.style import SMALL, WIDTH, looks, method_name, methods

STUDY = """\
name: many
seeds: [0]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits}, variants: [capsnet, slow, em, cnn]}
  pairs: {data: {name: multidigits}, variants: [alone, cnn]}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
  slow: {model: capsnet, training: {learning_rate: 0.0001}}
  em: {model: capsnet, options: {routing: em}}
  alone: {model: capsnet}
  cnn: {model: cnn_matched}
"""


def test_variants_that_differ_in_iterations_alone_are_one_method(make_plan):
    found = methods(make_plan(STUDY))
    assert found["capsnet-iterations1"] == found["capsnet-iterations3"] == found["alone"]  # 3 is the default
    assert len({found[name] for name in ("capsnet-iterations1", "slow", "em", "cnn")}) == 4  # slow: trained differently


def test_a_method_has_one_colour_and_marker_and_its_variants_differ_in_grey(make_plan):
    found = looks(make_plan(STUDY))
    one, three = found["capsnet-iterations1"], found["capsnet-iterations3"]
    assert (one.color, one.marker) == (three.color, three.marker)
    assert one.fill != three.fill
    assert one.dash != three.dash
    assert found["alone"] == three  # the same network in another experiment
    others = [found[name] for name in ("capsnet-iterations1", "slow", "em", "cnn")]
    assert len({look.color for look in others}) == len({look.marker for look in others}) == 4


def test_looks_do_not_depend_on_what_has_run(make_plan, write_run, figure_of):
    plan = make_plan(STUDY)
    write_run(plan.cell("digits", "cnn", 0), error=2.0)
    write_run(plan.cell("digits", "em", 0), error=1.0)
    (axis,) = figure_of(plot_error_by_variant, plan).axes
    drawn = {line.get_label(): line.get_color() for line in axis.lines}
    assert drawn["cnn"] == looks(plan)["cnn"].color
    assert drawn["em"] == looks(plan)["em"].color


def test_twenty_methods_can_be_told_apart_without_colour(make_plan):
    names = [f"v{n}" for n in range(20)]
    variants = "\n".join(
        f"  {name}: {{model: cnn_matched, training: {{epochs: {n + 1}}}}}" for n, name in enumerate(names)
    )
    plan = make_plan(
        f"name: m\nseeds: [0]\nexperiments: {{digits: {{data: {{name: digits}}}}}}\nvariants:\n{variants}\n"
    )
    found = looks(plan)
    assert len({(look.color, look.marker) for look in found.values()}) == 20
    assert len({(look.marker, str(look.dash)) for look in found.values()}) == 20


def test_colours_differ_for_readers_with_red_green_blindness(make_plan):
    """Machado's matrices for complete protanopia and deuteranopia, on linear light; distances in CIE Lab."""
    names = [f"v{n}" for n in range(8)]
    variants = "\n".join(
        f"  {name}: {{model: cnn_matched, training: {{epochs: {n + 1}}}}}" for n, name in enumerate(names)
    )
    plan = make_plan(
        f"name: m\nseeds: [0]\nexperiments: {{digits: {{data: {{name: digits}}}}}}\nvariants:\n{variants}\n"
    )
    colours = np.array([to_rgb(looks(plan)[name].color) for name in names])
    protan = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])
    deutan = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    for matrix in (np.eye(3), protan, deutan):
        lab = [_lab(matrix @ np.power(colour, 2.2)) for colour in colours]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(lab, 2)) > 10


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ linear.clip(0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_name_of_a_method_has_no_number_of_iterations():
    assert method_name("CapsNet, iterations 3, no decoder") == "CapsNet, no decoder"
    assert method_name("capsnet-iterations1-no_decoder") == "capsnet-no_decoder"
    assert method_name("EM, betas from 0") == "EM, betas from 0"


def test_every_figure_is_a_column_wide_with_text_that_can_be_read(finished, figure_of):
    for name, draw in PLOTS.items():
        figure = figure_of(draw, finished)
        assert figure.get_size_inches()[0] == WIDTH == 3.3
        texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]
        assert min(text.get_fontsize() for text in texts) >= SMALL == 6.5, name


def test_the_style_of_the_caller_changes_nothing(finished, figure_of):
    with matplotlib.rc_context({"font.size": 20, "axes.labelsize": 30}):
        (axis,) = figure_of(plot_error_by_variant, finished).axes
        assert axis.xaxis.label.get_fontsize() == 7
    assert matplotlib.rcParams["font.size"] != 7
