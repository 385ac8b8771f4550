"""All that a study needs on a machine without a network, in one folder: wheels, code, raw data, a script that installs.

DIR/requirements.txt   the pins of the project for that machine, with their checksums
DIR/wheels/            a wheel of each, and of capsbench
DIR/project/           Snakefile, workflow, profiles, configs and tests of the commit that is checked out, with changes
DIR/data/              the raw files of the study's data sets
DIR/install.sh         makes an environment from these alone
"""

import importlib.metadata
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from capsbench.errors import InputError, RunError
from capsbench.run.folder import sha256
from capsbench.run.provenance import git
from capsbench.study import Plan

ROOT = Path(__file__).parents[2]
PINS = "requirements.txt"
_GLIBC = range(17, 41)  # 2.17 to 2.40: a wheel for an older one runs with a newer one
_PROJECT = (
    "Snakefile", "workflow", "profiles", "configs", "capsbench", "tests", "results/reference", "docs", "mkdocs.yml",
    "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", PINS,
)  # fmt: skip
_INSTALL = """#!/bin/sh
# Installs capsbench from this folder alone: sh install.sh [FOLDER OF THE ENVIRONMENT]
set -e
here=$(cd "$(dirname "$0")" && pwd)
venv=${{1:-$here/venv}}
{python} -m venv{site} "$venv"
install() {{
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$here/wheels" "$@"
}}
install{deps} --require-hashes --requirement "$here/requirements.txt"
install --no-deps capsbench
cat <<END
installed; now:
  cd '$here/project'
  export CAPSBENCH_DATA='$here/data' PATH='$venv/bin':\\$PATH
  snakemake --cores all --configfile {study}
END
"""


def bundle(plan: Plan, target: Path, data: Path, python: str, machine: str, without: Sequence[str]) -> dict[str, int]:
    """Fill a folder with all that a study needs elsewhere.

    Args:
        plan: the study.
        target: the folder; it is not there, or empty.
        data: the folder of raw data.
        python: the version of Python there, such as 3.12.
        machine: its processor, x86_64 or aarch64; the system is Linux.
        without: packages that are there already. What only they need stays out too.

    Returns:
        Bytes by part: wheels, project, data.

    Raises:
        InputError: the folder has something in it; this is no checkout of the project; a package is unknown.
        RunError: pip cannot get a wheel.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: is not empty; take a new folder")
    if not (ROOT / PINS).exists():
        raise InputError(
            f"{ROOT}: is no checkout of capsbench; 'capsbench bundle' takes the pins and the rules from one"
        )
    pins = kept_pins((ROOT / PINS).read_text(encoding="utf-8"), environment(python, machine), without)
    target.mkdir(parents=True, exist_ok=True)
    (target / PINS).write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
    try:
        _download(target, python, machine)
    except RunError:
        shutil.rmtree(target)  # so that the next call finds a new folder
        raise
    study = _copy_project(target / "project", plan)
    _copy_data(plan, data, target / "data")
    script = _INSTALL.format(
        python=f"python{python}", site=" --system-site-packages" * bool(without), deps=" --no-deps" * bool(without),
        study=shlex.quote(study),
    )  # fmt: skip
    (target / "install.sh").write_text(script, encoding="utf-8")
    return {part: _size(target / part) for part in ("wheels", "project", "data")}


def environment(python: str, machine: str) -> dict[str, str]:
    """Return what markers of requirements ask of a machine with CPython on Linux."""
    return {
        "python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "sys_platform": "linux", "platform_system": "Linux",
        "os_name": "posix", "platform_machine": machine, "extra": "",
    }  # fmt: skip


def kept_pins(text: str, there: Mapping[str, str], without: Sequence[str]) -> list[str]:
    """Return the pins that a machine needs, with their checksums and without markers, a line each.

    Args:
        text: requirements.txt, as uv writes it.
        there: see `environment`.
        without: packages that are there already.

    Raises:
        InputError: one of these is no pin.
    """
    pins: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split(" --hash=")
        if not requirement.strip() or requirement.startswith("#"):
            continue
        parsed = Requirement(requirement.strip())
        if parsed.marker is None or parsed.marker.evaluate(dict(there)):
            checksums = "".join(f" --hash={digest.strip()}" for digest in hashes)
            pins[canonicalize_name(parsed.name)] = f"{parsed.name}{parsed.specifier}{checksums}"
    left = {str(canonicalize_name(name)) for name in without}
    if unknown := sorted(left - pins.keys()):
        raise InputError(f"--without {unknown[0]}: is none of the packages in {PINS}")
    wanted = _reached(pins.keys(), left, there) if left else pins.keys()
    return [pin for name, pin in pins.items() if name in wanted]


def _reached(pins: Iterable[str], left: set[str], there: Mapping[str, str]) -> set[str]:
    """Return the pins that capsbench needs by a way that does not pass through those that are left out."""
    known, found = set(pins), {("capsbench", "")}
    waiting = list(found)
    while waiting:
        for requirement in _needs(*waiting.pop(), there):
            name = str(canonicalize_name(requirement.name))
            if name in known - left:
                new = {(name, extra) for extra in ("", *requirement.extras)} - found
                found |= new
                waiting += new
    return {name for name, _ in found}


def _needs(name: str, extra: str, there: Mapping[str, str]) -> Iterator[Requirement]:
    """Yield what an installed package, or an extra of it, needs on another machine."""
    try:
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({**there, "extra": extra}):
                yield requirement
    except importlib.metadata.PackageNotFoundError:  # such as one for Windows
        return


def _copy_project(target: Path, plan: Plan) -> str:
    """Copy the files that git does not ignore; returns the path of the study from there."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_PROJECT)
    if listed is None:
        raise InputError(f"{ROOT}: is no git checkout, so that it cannot be told which files are the project's")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # not one that is deleted and not yet committed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    path = plan.path.resolve()
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path("configs", path.name)
    if not (target / inside).exists():
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target / inside)
    return inside.as_posix()


def _copy_data(plan: Plan, data: Path, target: Path) -> None:
    """Fetch what is missing of the raw files, and copy those of the study's data sets."""
    from capsbench.data.prepare import fetch

    target.mkdir()
    folders: dict[str, None] = {}
    for found in plan.data.values():
        fetch(found.name, data)
        folders |= dict.fromkeys(filter(None, (found.facts.folder, found.facts.test_folder)))
    for folder in folders:
        if (data / folder).is_dir():
            shutil.copytree(data / folder, target / folder)


def _download(target: Path, python: str, machine: str) -> None:
    """Let pip fetch the wheel of each pin, and build those that have none, and capsbench's.

    Raises:
        RunError: pip cannot get or build one, or one that was built here is for this machine alone.
    """
    tags = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC] + [f"manylinux2014_{machine}", f"linux_{machine}"]
    if machine == "x86_64":
        tags += [f"manylinux_2_{minor}_x86_64" for minor in (5, 12)] + ["manylinux1_x86_64", "manylinux2010_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    wheels = target / "wheels"
    chosen = ["--dest", str(wheels), "--no-deps", "--requirement", str(target / PINS)]
    _pip("download", *chosen, "--python-version", python, *platforms)
    for source in (*wheels.glob("*.tar.gz"), *wheels.glob("*.zip"), ROOT):
        before = set(wheels.glob("*.whl"))
        _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(source))
        (built,) = set(wheels.glob("*.whl")) - before
        if not built.name.endswith("-none-any.whl"):
            raise RunError(f"{source.name}: has no wheel for Python {python} on {machine}; use --without for it")
        if source != ROOT:
            source.unlink()
            _add_checksum(target / PINS, built)


def _add_checksum(pins: Path, wheel: Path) -> None:
    """Let a wheel that was built here pass for the pin of its source."""
    name, version = wheel.name.split("-")[:2]
    lines = pins.read_text(encoding="utf-8").splitlines()
    start = f"{canonicalize_name(name)}=={version} "
    text = "".join(
        f"{line} --hash=sha256:{sha256(wheel)}\n" if line.startswith(start) else f"{line}\n" for line in lines
    )
    pins.write_text(text, encoding="utf-8")


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", *words, "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RunError(f"pip {words[0]}: {lines[0].removeprefix('ERROR: ') if lines else 'failed'}")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
