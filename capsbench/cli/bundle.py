"""The command that collects what a machine without a network needs."""

import logging
import sys
from pathlib import Path

import click

from capsbench import load_study
from capsbench.cli.options import PATH, common_options, study_argument

log = logging.getLogger(__name__)

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@click.command("bundle")
@study_argument
@click.argument("folder", metavar="DIR", type=PATH, help="A new folder.")
@click.option("--python", default=HERE, metavar="VERSION", help=f"Python there (default: {HERE}).")
@click.option(
    "--machine", type=click.Choice(["x86_64", "aarch64"]), default="x86_64", help="Its processor (default: x86_64)."
)
@click.option("--without", multiple=True, metavar="PACKAGE", help="A package that is there already; repeatable.")
@common_options
def bundle(study: str, folder: Path, python: str, machine: str, without: tuple[str, ...]) -> None:
    """Collect all that a study needs on a machine without a network: wheels, code, raw data.

    With the pinned torch, CUDA included, the wheels are 3.2 GB; --without torch leaves out what only torch needs, too.

    Example: capsbench bundle quick /media/stick/capsbench --python 3.12
    """
    from capsbench.data import data_root
    from capsbench.run.bundle import bundle as collect

    sizes = collect(load_study(study), folder, data_root(), python, machine, without)
    log.info(", ".join(f"{part}: {size / 1e6:,.1f} MB" for part, size in sizes.items()))
    log.info(f"there: sh {folder / 'install.sh'}")
