from typing import get_args

import pytest
from matplotlib import pyplot as plt
from studies import CNN_ALONE, NOVEL, TABLE1

from capsbench.analysis.collect import collect
from capsbench.analysis.plots import PLOTS, plot_contrasts, write_plots
from capsbench.analysis.plots.files import save_figure
from capsbench.analysis.reference import redraw_plots
from capsbench.study.schema import Plot


def write(plan, results):
    return write_plots(plan, collect(plan, results), results / plan.study.name / "plots", results)


def says_nothing(path) -> bool:
    return "<!-- nothing to show: " in path.with_suffix(".svg").read_text()


def test_every_plot_that_a_study_may_name_exists():
    assert set(get_args(Plot)) == set(PLOTS)


def test_every_plot_is_written_as_png_and_svg(finished, results):
    paths = write(finished, results)
    expected = set(PLOTS) - {"published", "familiar_novel", "templates"}  # of digits, papers have no value; no scae
    assert {path.name for path in paths} == {f"{name}.{ending}" for name in expected for ending in ("png", "svg")}
    for path in paths:
        assert path.parent == results / "small_study/plots"
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
        assert path.stat().st_size > 15_000  # a drawing: what says "nothing to show" is smaller
        assert not says_nothing(path)


def test_a_study_that_has_not_run_gets_plots_that_say_so(plan, results):
    paths = write(plan, results)
    assert len(paths) == 2 * len(plan.study.plots)
    assert all(says_nothing(path) for path in paths)


def test_plots_that_do_not_fit_a_study_say_so(make_plan, write_run, results):
    plan = make_plan(f"{CNN_ALONE}plots: [{', '.join(PLOTS)}]\n")
    for run in plan.runs:
        write_run(run)
    silent = {path.stem for path in write(plan, results) if says_nothing(path)}
    assert silent == {
        "contrasts", "routing_iterations", "reconstructions", "published", "familiar_novel", "coupling_entropy",
        "templates",
    }  # fmt: skip


def test_a_study_that_names_no_plots_gets_those_that_it_gives_something(make_plan):
    assert make_plan(CNN_ALONE).study.plots == ["error_by_variant", "learning_curves", "accuracy_cost"]
    assert {"published", "reconstructions", "routing_iterations"} <= set(make_plan(TABLE1).study.plots)
    assert "familiar_novel" in make_plan(NOVEL).study.plots
    assert make_plan(CNN_ALONE + "plots: []\n").study.plots == []


def test_the_same_study_gives_the_same_bytes(finished, results):
    first, second = ({p.name: p.read_bytes() for p in write(finished, results)} for _ in range(2))
    assert first == second


def test_only_the_plots_that_are_named_are_drawn(make_plan, results):
    plan = make_plan(CNN_ALONE + "plots: [reconstructions]\n")
    assert {path.stem for path in write(plan, results)} == {"reconstructions"}


def test_no_figure_stays_open(finished, results):
    write(finished, results)
    assert plt.get_fignums() == []


def test_a_run_without_error_can_be_drawn(plan, write_run, results):
    for key in ("digits/capsnet-iterations1/seed0", "digits/capsnet-iterations3/seed0"):  # a contrast needs both
        folder = write_run(plan.run(key), error=0.0)
        row = {"epoch": 1, "train_accuracy": 1.0, "validation_accuracy": 1.0, "coupling_entropy": 0.5}
        folder.write_metrics([row])
    paths = write(plan, results)
    assert [path.stem for path in paths if says_nothing(path)] == []


TWO = """\
name: small_study
seeds: [0, 1, 2]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits}, variants: [cnn_matched, capsnet, capsnet_em]}
  pairs: {data: {name: digits, validation_images: 100}, variants: [capsnet_em, capsnet]}
variants:
  cnn_matched: {model: cnn_matched}
  capsnet: {model: capsnet}
  capsnet_em: {model: capsnet, options: {routing: em}}
plots: [error_by_variant, accuracy_cost, learning_curves, contrasts]
contrasts: {routing: [{a: capsnet_em, b: capsnet}]}
"""


@pytest.fixture
def two(make_plan, write_run):
    """EM is ahead in both experiments; with p = 0.031 in pairs, which Holm's correction for two makes 0.062."""
    plan = make_plan(TWO)
    ends = {"digits": {"capsnet_em": [3.0, 4.6, 4.1]}, "pairs": {"capsnet_em": [3.8, 3.3, 3.7]}}
    for run in plan.runs:
        write_run(run, error=ends[run.experiment].get(run.variant, [5.0, 5.2, 4.8])[run.seed])
    return plan


def write_part(plan, results, experiment):
    folder = results / "small_study/plots" / experiment
    write_plots(plan, collect(plan, results), folder, results, experiment=experiment)
    return {path.stem: path.read_text() for path in folder.glob("*.svg")}


def test_the_plots_of_one_experiment_show_it_alone_in_the_colours_of_the_study(two, results):
    whole = {path.stem: path.read_text() for path in write(two, results) if path.suffix == ".svg"}
    narrow = write_part(two, results, "pairs")
    assert narrow.keys() == whole.keys()
    for name, drawing in narrow.items():
        assert "<!-- pairs (handwritten" in drawing and "<!-- handwritten" not in drawing, name
        assert "<!-- pairs (handwritten" in whole[name] and "<!-- handwritten" in whole[name], name
    blue, orange, green = "#0072b2", "#d55e00", "#009e73"  # of the three, in the order of the study
    assert all(color in whole["error_by_variant"] for color in (blue, orange, green))
    assert [color in narrow["error_by_variant"] for color in (blue, orange, green)] == [False, True, True]


def test_the_plots_of_one_experiment_stand_beside_those_of_the_study(two, results):
    runs, folder = collect(two, results), results / "small_study"
    whole = {path: path.read_bytes() for path in redraw_plots(two, runs, folder, results)}
    paths = redraw_plots(two, runs, folder, results, experiment="pairs")
    assert {path.parent for path in paths} == {folder / "plots/pairs"}
    assert {path.name for path in paths} == {path.name for path in whole}
    assert all(path.read_bytes() == drawn for path, drawn in whole.items())


def test_an_experiment_without_contrasts_says_so(make_plan, results):
    plan = make_plan(TWO.replace("b: capsnet}", "b: capsnet, experiment: digits}"))
    write_plots(plan, collect(plan, results), results, results, experiment="pairs")
    assert says_nothing(results / "contrasts.svg")


def test_the_contrasts_of_one_experiment_are_corrected_for_the_whole_family(two, results):
    figure = plot_contrasts(two, results, collect(two, results), "pairs")
    (mean,) = (line for axis in figure.axes for line in axis.lines if line.get_marker() == "D")
    assert mean.get_xdata() == pytest.approx([-1.4])
    assert mean.get_markerfacecolor() == "white"  # undecided
    (_, svg) = save_figure(figure, results, "alone")
    assert write_part(two, results, "pairs")["contrasts"] == svg.read_text()
