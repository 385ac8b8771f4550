"""The commands about what is committed: writing a reference, comparing it with what it is made of."""

import logging
from pathlib import Path

import click

from capsbench import load_study
from capsbench.cli.options import PATH, results_option, study_argument
from capsbench.errors import InputError, RunError

log = logging.getLogger("capsbench.cli")


@click.command("reference")
@study_argument
@results_option
@click.option("--unfinished", is_flag=True, help="Write it though runs are missing, to be added later.")
def reference(study: str, results: Path, unfinished: bool) -> None:
    """Write results/reference/NAME from a finished study.

    A run that is finished in the reference that is there, and not in the folder of results, stays: a study can be
    trained in parts, on several machines.

    Example: capsbench reference quick
    """
    from capsbench.analysis.collect import collect
    from capsbench.analysis.reference import write_reference
    from capsbench.run.owner import check_owner

    plan = load_study(study)
    check_owner(plan, results)
    target = results / "reference" / plan.study.name
    stayed = write_reference(plan, results, collect(plan, results), target, unfinished)
    if stayed:
        log.info(f"{target}: {len(stayed)} runs stay from before; the others are those of {results / plan.study.name}")
    log.info(f"{target}: tables, plots, report.html, runs.csv, study.yaml, provenance.yaml")


@click.command("verify")
@click.argument(
    "folders", metavar="[FOLDER]...", nargs=-1, type=PATH, help="A reference (default: all in results/reference)."
)
@results_option
def verify(folders: tuple[Path, ...], results: Path) -> None:
    """Compare committed references with what they are made of.

    Tables are rebuilt from runs.csv, correct.npz, measures.json and study.yaml and compared byte for byte, correct.npz
    with the errors in runs.csv, rows with runs.tar.xz, rows and digests with provenance.yaml, commits with the git
    history, README.md and docs with both. Plots are not compared: fonts differ between machines. Exits with 1 where
    something differs, and names file and line. Says how many runs were trained by the code of this checkout; code that
    changed since is no fault.

    Example: capsbench verify results/reference/cpu
    """
    from capsbench.analysis.verify import references
    from capsbench.analysis.verify import verify as compare

    chosen = list(folders) or references(results)
    if not chosen:
        raise InputError(f"{results / 'reference'}: no reference here: no folder has a runs.csv")
    found = compare(chosen)
    for line in (*found.code, *found.notes, *found.problems):
        log.info(line)
    if found.problems:
        raise RunError(f"{len(found.problems)} problems; the lines above name them")
    log.info(f"{', '.join(map(str, chosen))}: as committed (plots were not compared: fonts differ between machines)")
