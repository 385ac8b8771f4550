"""Deleting results: of runs that are to be trained again, of a study, of what a study no longer has."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from capsbench.errors import InputError
from capsbench.run.folder import RunFolder
from capsbench.run.owner import NAME as OWNER
from capsbench.study import Plan


def forget(paths: Sequence[Path]) -> list[Path]:
    """Empty run folders, so that the next call of the workflow trains these runs afresh.

    Raises:
        InputError: a path is no run folder, or its run is being trained; nothing is deleted then.
    """
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: nothing to delete: this run has not been trained")
        if not _is_run(path):
            raise InputError(f"{path}: no run here; runs are in results/STUDY/runs/EXPERIMENT/VARIANT/seedN")
        _refuse_running(path)
    for path in paths:
        remove(inner for inner in path.iterdir() if inner.name != ".lock")
        RunFolder(path).again_path.touch()  # and is not taken from another study, see capsbench.run.shared
    return list(paths)


def unusable(plan: Plan, results: Path) -> list[Path]:
    """Return the files of a study's runs that have to be made again, which Snakemake cannot know: see `RunFolder`.

    run.yaml is no output of a rule, since Snakemake takes the outputs of a job that fails away; nor does it look into
    files.
    """
    folders = (RunFolder.of(results, run.study, run.key) for run in plan.runs)
    return [path for folder in folders if (found := folder.unusable()) and not folder.is_locked() for path in found]


def _is_run(path: Path) -> bool:
    """Tell whether a folder is that of a run, whatever is left of it, and no other one of that name."""
    parts = path.resolve().parts
    named = len(parts) > 5 and parts[-4] == "runs" and parts[-1].startswith("seed")
    return named and (path.resolve().parents[3] / OWNER).exists()


def found_orphans(plan: Plan, results: Path, tables: Sequence[str]) -> list[Path]:
    """Return what results/NAME has of runs, protocols, tables and plots that a study no longer has.

    What killed writers left of temporary files is swept by those who write there next, see `capsbench.run.folder`.

    Args:
        plan: the study.
        results: the folder of results.
        tables: the names of its tables.

    Raises:
        InputError: one of these runs is being trained.
    """
    here = results / plan.study.name
    runs = {here / "runs" / run.key for run in plan.runs}
    lost = [path for path in sorted(here.glob("runs/*/*/*")) if path.is_dir() and path not in runs]
    for path in lost:
        _refuse_running(path)
    protocols = {run.experiment: {p.name for p in plan.study.evaluations_of(run.experiment)} for run in plan.runs}
    for run in plan.runs:
        found = sorted((here / "runs" / run.key / "evaluations").glob("*.*"))
        lost += [path for path in found if path.stem not in protocols[run.experiment] and path.suffix != ".part"]
    plots = here / "plots"
    drawn = [path for path in sorted(plots.glob("[!.]*/")) if _has_plots_alone(path)]  # of `plots --experiment`
    lost += [path for path in drawn if path.name not in plan.study.experiments]
    own = [path for path in drawn if path.name in plan.study.experiments]
    for folder, names in ((here / "tables", tables), *((each, plan.study.plots) for each in (plots, *own))):
        lost += [path for path in sorted(folder.glob("[!.]*")) if path.is_file() and path.stem not in names]
    return lost


def _has_plots_alone(folder: Path) -> bool:
    """Tell whether a folder holds nothing that is a person's."""
    return not folder.is_symlink() and all(path.suffix in (".png", ".svg") for path in folder.iterdir())


def refuse_running(folder: Path) -> None:
    """Raise InputError where a run is being trained whose folder this is, or which results/NAME has."""
    for path in (folder, *folder.glob("runs/*/*/*")):
        _refuse_running(path)


def remove(paths: Iterable[Path]) -> None:
    """Delete files, and folders with all that is in them."""
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [inner for inner in path.rglob("*") if inner.is_file()]
    return sum(file.stat().st_size for file in files)


def _refuse_running(path: Path) -> None:
    if RunFolder(path).is_locked():
        raise InputError(f"{path}: this run is being trained now; end that first")
