"""The commands `capsbench data ...`: raw data are fetched, checked and described."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capsbench import load_study
from capsbench.cli.messages import Group, unknown_name
from capsbench.cli.options import PATH, common_options, study_argument, unofficial_option
from capsbench.errors import InputError

if TYPE_CHECKING:
    from capsbench.study import Data

log = logging.getLogger(__name__)


@click.group("data", cls=Group)
def data() -> None:
    """Fetch and check raw data, show what is in it, remove prepared arrays.

    Example: capsbench data fetch mnist
    """


@data.command("fetch")
@click.argument("name", metavar="NAME", help="A data set, or all.")
@unofficial_option
@common_options
def data_fetch(name: str, allow_unofficial: bool) -> None:
    """Download what is missing into CAPSBENCH_DATA (default: data/) and check every byte.

    Example: capsbench data fetch mnist
    """
    from capsbench.study import catalogue

    names = list(catalogue())
    if name not in (*names, "all"):
        unknown_name("data set", name, [*names, "all"])
    missing = []
    for each in names if name == "all" else [name]:
        try:
            _fetch(each, allow_unofficial)
        except InputError as error:
            if name != "all":
                raise
            log.error(f"capsbench: {each}: {error}")
            missing.append(each)
    if missing:
        raise InputError(f"not complete: {', '.join(missing)}")


def _fetch(name: str, allow_unofficial: bool) -> None:
    from capsbench.data import data_root
    from capsbench.data.prepare import prepare

    wanted = _plain_data(name, allow_unofficial)
    counts = prepare(wanted, data_root())
    folders = dict.fromkeys(filter(None, [wanted.facts.folder, wanted.facts.test_folder]))
    places = " and ".join(str(data_root() / folder) for folder in folders)
    _show_counts(name, counts, f", checked, {f'in {places}' if wanted.facts.needs_files else 'embedded'}")


def _show_counts(name: str, counts: Mapping[str, Any], more: str = "") -> None:
    log.info(f"{name}: {counts['train']['images']:,} training and {counts['test']['images']:,} test images{more}")
    for line in counts["unofficial"]:
        log.info(f"{name}: not official: {line}")


@data.command("prepare")
@study_argument
@click.argument("experiment", metavar="EXPERIMENT", help="One of the study's experiments.")
@click.option("--manifest", type=PATH, metavar="FILE", help="Write counts and fingerprints to FILE.")
@common_options
def data_prepare(study: str, experiment: str, manifest: Path | None) -> None:
    """Fetch and check the data of an experiment; check that its networks can be built.

    Example: capsbench data prepare quick digits
    """
    plan = load_study(study)
    if experiment not in plan.data:
        unknown_name("experiment", experiment, list(plan.data), f"{plan.path}: ")

    from capsbench.data import data_root
    from capsbench.data.prepare import prepare
    from capsbench.run.folder import write_json
    from capsbench.run.networks import check_networks

    check_networks(plan, experiment)
    counts = prepare(plan.data[experiment], data_root())
    _show_counts(experiment, counts)
    if manifest:
        write_json(manifest, counts)


@data.command("card")
@click.argument("name", metavar="NAME", help="A data set.")
@unofficial_option
@click.option(
    "--output", type=PATH, metavar="DIR", default=Path("results/data"), help="Folder (default: results/data)."
)
@common_options
def data_card(name: str, allow_unofficial: bool, output: Path) -> None:
    """Describe a data set: source, licence, counts, fingerprint, a contact sheet.

    Example: capsbench data card digits
    """
    from capsbench.study import catalogue

    if name not in catalogue():
        unknown_name("data set", name, list(catalogue()))

    from capsbench.data import data_root
    from capsbench.data.card import write_card

    paths = write_card(_plain_data(name, allow_unofficial), data_root(), output)
    log.info(paths[0].read_text(encoding="utf-8"))
    for path in paths:
        log.info(str(path))


@data.command("clean")
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@common_options
def data_clean(dry_run: bool) -> None:
    """Remove all prepared arrays; they are made again when needed.

    They are in CAPSBENCH_CACHE (default: ~/.cache/capsbench). Nothing else is removed, neither raw data nor results.

    Example: capsbench data clean --dry-run
    """
    from capsbench.data.readers.cache import cache_folder, entries, remove

    sizes = entries()
    gone = []
    for entry, size in sizes.items():
        if dry_run or remove(entry):
            log.info(f"{entry.name}: {_megabytes(size)}")
            gone.append(size)
        else:
            log.info(f"{entry.name}: stays, another process is making it")
    many = "1 entry" if len(gone) == 1 else f"{len(gone)} entries"
    log.info(f"{cache_folder()}: {many}, {_megabytes(sum(gone))}, {'would be removed' if dry_run else 'removed'}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _plain_data(name: str, allow_unofficial: bool) -> "Data":
    """Return a data set with the default of every option."""
    from capsbench.study import Data, catalogue

    return Data(name=name, options=catalogue()[name].options(), allow_unofficial=allow_unofficial)
