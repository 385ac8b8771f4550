"""The commands about the runs of a study: what became of them, what would run, train them again, delete them."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from capsbench import load_study
from capsbench.cli.options import PATH, common_options, results_option, study_argument
from capsbench.errors import InputError, RunError

if TYPE_CHECKING:
    from capsbench.run.status import RunState

log = logging.getLogger("capsbench.cli")
Function = TypeVar("Function", bound=Callable[..., Any])

_QUIET_STATES = ("done", "missing")  # need no line of their own
_MOST_SHOWN = 20  # paths that clean lists


def _selected(function: Function) -> Function:
    """Give a command the options that choose runs."""
    table = click.option("--table", "tables", metavar="NAME", multiple=True, help="Only runs of this paper's table.")
    experiment = click.option("--experiment", "experiments", metavar="E", multiple=True, help="Only this experiment.")
    variant = click.option(
        "--variant", "variants", metavar="V", multiple=True, help="Only this variant, or pattern, as 'capsnet*'."
    )
    return table(experiment(variant(function)))


@click.command("status")
@study_argument
@click.option("--json", "as_json", is_flag=True, help="Print the state of every run, as JSON.")
@click.option("--runs", "each_run", is_flag=True, help="List finished and missing runs too.")
@_selected
@results_option
def status(study: str, as_json: bool, each_run: bool, results: Path, **chosen: Sequence[str]) -> None:
    """Say what became of each run, and why the next call would make it again.

    A run is done, diverged (a result too), running, not evaluated, stale (its options, code or data changed since),
    interrupted, failed, damaged or missing.

    Example: capsbench status quick
    """
    states = _states(study, results, chosen)
    if as_json:
        log.info(json.dumps([state.plain() for state in states], indent=2))
        return
    counts = Counter(state.state for state in states)
    log.info(f"{len(states)} runs: {', '.join(f'{number} {state}' for state, number in counts.most_common())}")
    for line in _lines(state for state in states if each_run or state.state not in _QUIET_STATES):
        log.info(line)
    if any(state.trains for state in states):
        log.info(_time_left(states))


@click.command("plan")
@study_argument
@click.option("--targets", is_flag=True, help="Print the files to ask Snakemake for, in one line, and nothing else.")
@_selected
@results_option
def plan_runs(study: str, targets: bool, results: Path, **chosen: Sequence[str]) -> None:
    """List what the next call of the workflow would train and evaluate, and about how long that takes.

    A selection includes the runs that the selected ones need. `make study STUDY=FILE ONLY="--table sabour-table1"`
    makes these runs only.

    Example: capsbench plan quick --experiment digits --variant capsnet
    """
    if targets:
        log.info(" ".join(_targets(study, results, chosen)))
        return
    states = [state for state in _states(study, results, chosen, needed=True) if state.is_open]
    trained = sum(state.trains for state in states)
    measured = sum(not state.trains for state in states)
    if not states:
        log.info("no run to train or evaluate")
        return
    log.info(f"{trained} runs to train and evaluate, {measured} to evaluate only")
    for line in _lines(states):
        log.info(line)
    if trained:
        log.info(_time_left(states))


@click.command("reproduce")
@click.argument("where", metavar="RUN|STUDY", help="A run folder, a study, or a folder below results/reference.")
@click.argument("keys", metavar="[KEY]...", nargs=-1, help="Of a study: these runs, as EXPERIMENT/VARIANT/seedN.")
@click.option(
    "--into", type=PATH, metavar="DIR", default=Path("results/reproduced"), help="Folder to train in (default: "
    "results/reproduced)."
)  # fmt: skip
@results_option
def reproduce(where: str, keys: tuple[str, ...], into: Path, results: Path) -> None:
    """Train and evaluate runs again, from their run.yaml, in another folder, and compare every number.

    A reference needs no run folders: it keeps each run's configuration, metrics and evaluations. Where a number
    differs, the versions, processor, code and data that differ are named, and the exit code is 1. The same command
    again continues one that was interrupted.

    Example: capsbench reproduce results/quick/runs/digits/cnn_matched/seed0
    """
    from capsbench.analysis.reproduction import found_runs, reproduce_run
    from capsbench.data import data_root

    folders = found_runs(where, keys, results, into)
    log.info(f"{len(folders)} run{'s' if len(folders) > 1 else ''} to train again in {into}")
    different = 0
    for key, folder in folders.items():
        try:
            found = reproduce_run(folder, into, data_root())
        except (InputError, RunError) as error:  # the others go on
            different += 1
            log.error(f"{key}: cannot be made again: {error}")
            continue
        different += bool(found.differences)
        for line in found.lines(key):
            log.info(line)
    if different:
        raise RunError(f"{different} of {len(folders)} runs are not as before; see the lines above")


@click.command("redo")
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=PATH, help="Run folders.")
@common_options
def redo(folders: tuple[Path, ...]) -> None:
    """Delete the results of runs, so that the next call of the workflow trains them afresh.

    Example: capsbench redo results/quick/runs/digits/capsnet/seed0
    """
    from capsbench.run.cleaning import forget

    for folder in forget(folders):
        log.info(f"{folder}: deleted; 'snakemake --cores all --configfile STUDY' trains it again")


@click.command("clean")
@study_argument
@click.option("--orphans", is_flag=True, help="Only what the study has no more: runs, evaluations, tables, plots.")
@click.option("--yes", is_flag=True, help="Ask no question.")
@results_option
def clean(study: str, orphans: bool, yes: bool, results: Path) -> None:
    """Delete the results of a study, or with --orphans those that it no longer has.

    Raw data, prepared arrays, the MLflow store and results/reference stay.

    Example: capsbench clean quick --orphans
    """
    from capsbench.analysis.table_names import table_names
    from capsbench.run.cleaning import found_orphans, refuse_running, remove, size
    from capsbench.run.owner import check_owner

    plan = load_study(study)
    check_owner(plan, results)
    folder = results / plan.study.name
    if folder.is_symlink():
        raise InputError(f"{folder}: is a link; delete what it points to yourself, {folder.resolve()}")
    if orphans:
        paths = found_orphans(plan, results, table_names(plan))
    else:
        refuse_running(folder)
        paths = [folder] if folder.exists() else []
    if not paths:
        log.info(f"{folder}: nothing to delete")
        return
    for path in paths[:_MOST_SHOWN]:
        log.info(str(path))
    if len(paths) > _MOST_SHOWN:
        log.info(f"and {len(paths) - _MOST_SHOWN} more")
    total = f"{sum(map(size, paths)) / 2**20:,.1f} MiB"
    if not yes:
        try:
            click.confirm(f"delete these, {total}?", abort=True)
        except click.Abort:
            raise InputError("nothing was deleted; --yes deletes without a question") from None
    for path in paths:  # while the question was open a training may have begun
        refuse_running(path)
    remove(paths)
    log.info(f"deleted, {total}")


def _states(study: str, results: Path, chosen: "dict[str, Sequence[str]]", needed: bool = False) -> "list[RunState]":
    from capsbench.run.owner import check_owner
    from capsbench.run.selection import select, with_needed
    from capsbench.run.status import run_states

    loaded = load_study(study)
    runs = select(loaded, **chosen)
    keys = {run.key for run in (with_needed(loaded, runs) if needed else runs)}
    check_owner(loaded, results)
    return [state for state in run_states(loaded, results) if state.key in keys]


def _targets(study: str, results: Path, chosen: "dict[str, Sequence[str]]") -> list[str]:
    """Return the files of the runs that are chosen."""
    from capsbench.run.folder import RunFolder
    from capsbench.run.selection import select

    loaded = load_study(study)
    files = []
    for run in select(loaded, **chosen):
        folder = RunFolder.of(results, run.study, run.key)
        protocols = loaded.study.evaluations_of(run.experiment)
        files += [folder.model_path, *(folder.evaluation_path(protocol.name) for protocol in protocols)]
    return list(map(str, files))


def _lines(states: "Iterable[RunState]") -> list[str]:
    """Return a line per state, cell and reason, with the seeds that have them."""
    seeds: dict[tuple[str, str, str], list[str]] = {}
    for state in states:
        cell, _, seed = state.key.rpartition("/seed")
        seeds.setdefault((state.state, cell, state.why), []).append(seed)
    width = max((len(state) for state, _, _ in seeds), default=0)
    return [
        f"  {state.ljust(width)}  {cell}, seed{'s' if len(found) > 1 else ''} {', '.join(found)}"
        + (f": {why}" if why else "")
        for (state, cell, why), found in seeds.items()
    ]


def _time_left(states: "Sequence[RunState]") -> str:
    """Say how long the trainings take that are left, as far as that can be said."""
    from capsbench.run.progress import duration

    known = [state.seconds for state in states if state.trains and state.seconds is not None]
    unknown = sum(state.trains for state in states) - len(known)
    if not known:
        return "time left: not known before a run has ended"
    rest = f", and {unknown} runs of unknown length" if unknown else ""
    return f"time left: about {duration(sum(known))} of training, one run after another{rest}"
