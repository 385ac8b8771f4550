"""The project files that capsbench ships: Snakefile, workflow, profiles and studies.

They lie in capsbench/project/ of an installed package, and at the top of the repository.
"""

import difflib
from os import PathLike
from pathlib import Path

from capsbench.errors import InputError

PACKAGE = Path(__file__).parents[1]
TEMPLATE = PACKAGE / "study" / "template.yaml"
ENDINGS = (".yaml", ".yml")


def project_folder() -> Path:
    """Return the folder of the shipped project files. Raises InputError where they are not installed."""
    for folder in (PACKAGE / "project", PACKAGE.parent):
        if (folder / "Snakefile").is_file() and (folder / "workflow").is_dir():
            return folder
    raise InputError(f"the Snakefile and the studies are missing from {PACKAGE / 'project'}: install capsbench again")


def find_study(study: str | PathLike[str]) -> Path:
    """Return the path of a study: a path as it is, or a name in configs/, or a name among the shipped studies.

    Raises InputError for a name that is in neither; whether a path exists is seen when it is read.
    """
    path = Path(study)
    if path.suffix in ENDINGS:
        return path
    own = Path("configs")
    for folder in (own, _shipped_configs()):
        if folder is not None and (found := folder / f"{path}.yaml").is_file():
            return found
    in_own = _studies_in(own)
    in_shipped = [name for name in _studies_in(_shipped_configs()) if name not in in_own]
    near = difflib.get_close_matches(str(path), [*in_own, *in_shipped], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    shipped = f"; capsbench ships {', '.join(in_shipped)}" if in_shipped else ""
    raise InputError(
        f"no study '{path}'; {hint}give a path to a .yaml file or a name in configs/ ({', '.join(in_own) or 'none'})"
        f"{shipped}"
    )


def write_project(target: Path) -> list[Path]:
    """Write Snakefile, workflow/, profiles/ and two studies into a folder -> the files written.

    Raises InputError, before anything is written, where one of the files exists.
    """
    contents = _project_files()
    existing = [str(name) for name in contents if (target / name).exists()]
    if existing:
        others = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise InputError(f"{target} already has {existing[0]}{others}; nothing was written")
    written = []
    for name, source in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_bytes(source.read_bytes())
        except OSError as error:  # a full disk names no file
            raise OSError(error.errno, error.strerror, str(path)) from None
        written.append(path)
    return written


def _project_files() -> dict[Path, Path]:
    """Return what a project consists of: path inside the project -> shipped file."""
    shipped = project_folder()
    files = [shipped / "Snakefile", shipped / "configs" / "quick.yaml"]  # quick: what a bare `snakemake` runs
    for folder in ("workflow", "profiles"):
        files += sorted(path for path in (shipped / folder).rglob("*") if path.is_file())
    contents = {path.relative_to(shipped): path for path in files}
    contents = {name: path for name, path in contents.items() if not _is_by_product(name)}
    return {**contents, Path("configs/study.yaml"): TEMPLATE}


def _is_by_product(name: Path) -> bool:
    return any(part.startswith((".", "__pycache__")) for part in name.parts)


def _shipped_configs() -> Path | None:
    try:
        return project_folder() / "configs"
    except InputError:
        return None


def _studies_in(folder: Path | None) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml")) if folder else []
