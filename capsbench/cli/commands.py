"""The command line: one sub-command per stage. Each imports what it needs itself, so that --help is fast."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capsbench import __version__, load_study
from capsbench.cli.bench import bench
from capsbench.cli.bundle import bundle
from capsbench.cli.data import data
from capsbench.cli.messages import Group, run_command_line, unknown_name
from capsbench.cli.options import (
    PATH,
    ImageShape,
    common_options,
    count_option,
    redrawn_options,
    results_option,
    run_argument,
    run_option,
    study_argument,
)
from capsbench.cli.references import reference, verify
from capsbench.cli.runs import clean, plan_runs, redo, reproduce, status
from capsbench.errors import InputError, RunError

if TYPE_CHECKING:
    import pandas as pd

    from capsbench.registry import Options
    from capsbench.study import Plan, Run

log = logging.getLogger("capsbench.cli")

MOST_LISTED = 100  # runs that config show lists one by one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 0, 1 for a failed run, 2 for bad input, 130 for Ctrl-C."""
    return run_command_line(capsbench, arguments)


@click.group(
    cls=Group,
    context_settings={"max_content_width": 110},
)
@click.version_option(__version__, prog_name="capsbench", message="%(prog)s %(version)s")
def capsbench() -> None:
    """Reproducible benchmark and ablation studies of capsule networks.

    Example: capsbench init my_study
    """


# Before a study


@capsbench.command("init")
@click.argument("folder", metavar="DIR", type=PATH, help="Folder of the new project; it may exist.")
@common_options
def init(folder: Path) -> None:
    """Write a new project: a workflow and a commented study.

    Example: capsbench init my_study
    """
    from capsbench.study.shipped import write_project

    for path in write_project(folder):
        log.info(str(path))
    here = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    log.info(f"run the study: {here}snakemake --cores all --configfile configs/study.yaml")


@capsbench.group("config", cls=Group)
def config() -> None:
    """Check a study, list its runs, print the schema.

    Example: capsbench config show quick
    """


@config.command("show")
@study_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything that decides each run.")
@click.option("--runs", "each_run", is_flag=True, help="List each run of a large study too.")
@click.option("--speeds", type=PATH, metavar="FILE", help="Speeds from 'capsbench bench networks', for the hours.")
@common_options
def config_show(study: str, as_json: bool, each_run: bool, speeds: Path | None) -> None:
    """Check a study, list its runs, what they cost and what they can show.

    Hours are computed from FILE, by default from results/reference/speeds.csv where that is there.

    Example: capsbench config show quick
    """
    plan = load_study(study)
    if as_json:
        log.info(json.dumps([run.model_dump(mode="json") for run in plan.runs], indent=2))
        return

    from capsbench.analysis.power import before_the_runs
    from capsbench.benchmarks.costs import SPEEDS, cost_lines
    from capsbench.benchmarks.networks import no_speeds, read_speeds
    from capsbench.run.networks import check_networks

    for experiment in plan.study.experiments:
        check_networks(plan, experiment)
    known = no_speeds() if speeds is None and not SPEEDS.exists() else read_speeds(speeds or SPEEDS)
    costs = cost_lines(plan, known, speeds or SPEEDS)
    seeds = plan.study.seeds
    summary = f"{len(plan.runs)} runs: {len(plan.runs) // len(seeds)} cells x {len(seeds)} seeds"
    if each_run or len(plan.runs) <= MOST_LISTED:
        keys = [run.key for run in plan.runs]
    else:
        keys = list(dict.fromkeys(f"{run.experiment}/{run.variant}" for run in plan.runs))
        summary += f" ({', '.join(map(str, seeds))}); --runs lists each"
    for line in (*keys, summary, "", *costs, "", "what the seeds can show", *before_the_runs(plan)):
        log.info(line)


@config.command("schema")
@common_options
def config_schema() -> None:
    """Print the JSON schema of study files.

    Example: capsbench config schema > study.schema.json
    """
    from capsbench.study.json_schema import json_schema

    log.info(json.dumps(json_schema(), indent=2))


@capsbench.command("models")
@click.argument("name", metavar="NAME", required=False, help="One network: its options with types, its routings.")
@click.option("--image-shape", type=ImageShape(), help="Count for images of this shape (default: the paper's).")
@count_option("--classes", None, "Count for this number of classes (default: the paper's)")
@common_options
def models(name: str | None, image_shape: tuple[int, int, int] | None, classes: int | None) -> None:
    """List the networks, or show one in full.

    Each with its paper, parameters, multiply-adds and options.

    Example: capsbench models capsnet --image-shape 1x28x28
    """
    from capsbench.registry import MODELS

    if name is not None and name not in MODELS.names():
        unknown_name("model", name, MODELS.names())

    from capsbench.analysis.inventory import overview, page

    log.info(overview(image_shape, classes) if name is None else page(name, image_shape, classes))


capsbench.add_command(data)
capsbench.add_command(bundle)


# Runs


@capsbench.command("train")
@study_argument
@run_argument
@click.option("--again", is_flag=True, help="Train a finished run again.")
@results_option
def train_run(study: str, key: str, again: bool, results: Path) -> None:
    """Train one run, continuing from its checkpoint if there is one.

    Example: capsbench train quick digits/cnn_matched/seed0
    """
    plan = load_study(study)
    run = _find(plan, key)

    from capsbench.data import data_root
    from capsbench.run.owner import claim
    from capsbench.run.progress import counted, planned_runs
    from capsbench.run.provenance import study_file
    from capsbench.run.train import train

    claim(plan, results)
    keys = counted([each.key for each in plan.runs], key)
    with study_file(plan.path), planned_runs(keys):
        train(run, results, data_root(), tracking=plan.study.tracking, again=again, runs_in_study=len(keys))


@capsbench.command("evaluate")
@study_argument
@run_option
@click.option("--protocol", "names", metavar="NAME", multiple=True, help="One protocol; may be given several times.")
@results_option
def evaluate_run(study: str, key: str | None, names: tuple[str, ...], results: Path) -> None:
    """Evaluate a trained run, or all of a study, under all protocols of the study or under some.

    Example: capsbench evaluate quick digits/cnn_matched/seed0 --protocol calibration
    """
    from capsbench.data import data_root
    from capsbench.evaluation import evaluate
    from capsbench.run.owner import check_owner

    plan = load_study(study)
    check_owner(plan, results)
    runs = _trained(plan, results) if key is None else [_find(plan, key)]

    for run in runs:
        for name, found in evaluate(run, results, data_root(), _protocols(plan, run.experiment, names)).items():
            if not names and name != "accuracy":
                continue
            text = f"test error {found['error']:.2f} %" if name == "accuracy" and found["status"] == "ok" else ""
            # dozens of lines per study, which hide its errors
            detail = found["status"] == "not applicable" or (name != "accuracy" and "accuracy" in names)
            log.info(f"{run.key}  {text or _headline(name, found)}", extra={"detail": detail})


def _trained(plan: "Plan", results: Path) -> "list[Run]":
    """Return the runs of a study that are trained as it has them now."""
    from capsbench.run.status import run_states

    states = {state.key: state for state in run_states(plan, results)}
    trained = [run for run in plan.runs if not states[run.key].trains]
    if not trained:
        raise InputError(f"{plan.path}: no run is trained as the study has it now; 'capsbench status' says why")
    if len(trained) < len(plan.runs):
        log.info(f"{len(plan.runs) - len(trained)} runs are not trained as the study has them now, and are left out")
    return trained


def _protocols(plan: "Plan", experiment: str, names: Sequence[str]) -> "list[Options]":
    """Return the protocols of an experiment, or those of these names, with the study's options where it has them."""
    from capsbench.registry import PROTOCOLS, UnknownName

    own = {options.name: options for options in plan.study.evaluations_of(experiment)}
    try:
        return [own.get(name) or PROTOCOLS.options(name)() for name in names or own]
    except UnknownName as error:
        raise InputError(str(error)) from None


def _headline(name: str, found: Mapping[str, Any]) -> str:
    """Say in one line what a protocol found."""
    if found["status"] != "ok":
        reason = f": {found['reason']}" if "reason" in found else ""
        return f"{name}: {found['status']}{reason}"
    from capsbench.registry import PROTOCOLS

    shown = PROTOCOLS[name].facts.get("shows", {})
    numbers = [f"{title} {found[key]:.4g}" for key, title in shown.items() if isinstance(found.get(key), int | float)]
    return f"{name}: {', '.join(numbers) or 'done'}"


@capsbench.command("track")
@study_argument
@click.option("--models", is_flag=True, help="Log the trained networks too.")
@results_option
def track(study: str, models: bool, results: Path) -> None:
    """Bring the MLflow store up to date with the run folders.

    Example: capsbench track quick
    """
    from capsbench.run.owner import check_owner
    from capsbench.run.store import without_passwords
    from capsbench.run.tracking import store_uri, study_page, track_study

    plan = load_study(study)
    check_owner(plan, results)
    uri = without_passwords(store_uri(results))
    try:
        counts = track_study(plan, results, models=models)
        page = study_page(plan.study.name, results)
    except InputError:  # of a run, or of what was done to the store: it says what to do
        raise
    except Exception as error:  # any store, any failure: one line
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = "; if the file is damaged, move it away and run this again" if uri.startswith("sqlite") else ""
        raise RunError(f"the MLflow store {uri} fails: {without_passwords(first)[:300]}{hint}") from error
    log.info(f"{uri}: {', '.join(f'{number} {outcome}' for outcome, number in sorted(counts.items()))}")
    log.info(page if uri.startswith("http") else f"'make ui', then {page}")


for command in (status, plan_runs, reproduce, redo, clean):
    capsbench.add_command(command)


# After the runs


@capsbench.command("tables")
@redrawn_options
def tables(study: str | None, results: Path, file: Path | None) -> None:
    """Rebuild the tables from the runs that exist, and print a summary; trains nothing.

    With --runs, those of a committed reference, for which no run folders are needed.

    Example: capsbench tables quick
    """
    from capsbench.analysis.collect import write_runs
    from capsbench.analysis.reference import redraw_tables
    from capsbench.analysis.tables import terminal_summary

    plan, runs, folder, source = _runs(study, results, file)
    if file is None:
        write_runs(runs, folder / "runs.csv")
    for name, paths in redraw_tables(plan, runs, folder, source).items():
        log.info(f"{name}: {', '.join(map(str, paths))}", extra={"detail": True})
    command = "" if file is None else f"capsbench report --runs {file}"
    log.info(f"\n{terminal_summary(plan, runs, folder / 'report.html', command)}")


@capsbench.command("plots")
@click.option("--experiment", metavar="E", help="Only this experiment, as wide as a column or a page, in plots/E.")
@redrawn_options
def plots(study: str | None, experiment: str | None, results: Path, file: Path | None) -> None:
    """Rebuild the plots from the runs that exist; trains nothing.

    With --runs, those of a committed reference; plots that show images are then not drawn.

    Example: capsbench plots quick --experiment digits
    """
    from capsbench.analysis.reference import redraw_plots

    plan, runs, folder, source = _runs(study, results, file)
    if experiment is not None and experiment not in plan.data:
        unknown_name("experiment", experiment, list(plan.data), f"{plan.path}: ")
    for path in redraw_plots(plan, runs, folder, source, experiment=experiment):
        log.info(str(path))


@capsbench.command("report")
@redrawn_options
def report(study: str | None, results: Path, file: Path | None) -> None:
    """Rebuild report.html from tables, plots and provenance.

    With --runs, that of a committed reference, for which no run folders are needed.

    Example: capsbench report quick
    """
    from capsbench.analysis.reference import redraw_report

    log.info(str(redraw_report(*_runs(study, results, file))))


for command in (reference, verify, bench):
    capsbench.add_command(command)


def _find(plan: "Plan", key: str) -> "Run":
    try:
        return plan.run(key)
    except KeyError:
        import difflib

        near = difflib.get_close_matches(key, [run.key for run in plan.runs], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"{plan.path} has no run '{key}'; {hint}'capsbench config show {plan.path}' lists them"
        ) from None


def _runs(study: str | None, results: Path, file: Path | None) -> "tuple[Plan, pd.DataFrame, Path, Path | None]":
    """Return a study, its runs, the folder of what is drawn, and that of results; None where there are no run folders.

    The runs come from the run folders or, where it is given, from the file of a reference.
    """
    from capsbench.analysis.collect import collect
    from capsbench.analysis.reference import read_reference
    from capsbench.run.owner import check_owner
    from capsbench.study.shipped import find_study

    if file is not None:
        return *read_reference(file, None if study is None else find_study(study)), file.parent, None
    if study is None:
        raise click.UsageError("missing argument 'STUDY', or --runs FILE")
    plan = load_study(study)
    check_owner(plan, results)
    return plan, collect(plan, results), results / plan.study.name, results
