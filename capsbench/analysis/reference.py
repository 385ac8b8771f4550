"""A finished study as a reference to commit: tables, plots, a page, and the provenance of every number.

What a reference holds is made from its own files alone, apart from pictures of images, so that it can be read, redrawn
and verified (capsbench.analysis.verify) when the run folders are gone. A study that is trained in parts is added to its
reference part by part.
"""

import csv
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from capsbench.analysis.collect import collect, learning_curves, read_runs, runs_of_plan, write_runs
from capsbench.analysis.correct_bits import NAME as CORRECT
from capsbench.analysis.correct_bits import Correct, read_correct, read_predictions, write_correct
from capsbench.analysis.kept_runs import NAME as KEPT
from capsbench.analysis.kept_runs import WITH_WEIGHTS, gather, keep_weights, pack_runs, unpack_runs, with_earlier
from capsbench.analysis.measures import NAME as MEASURES
from capsbench.analysis.measures import Measures, load_measures, read_measures, write_measures
from capsbench.analysis.report import summarise_provenance, write_report
from capsbench.analysis.tables import build_tables, write_tables
from capsbench.errors import InputError
from capsbench.run import provenance
from capsbench.run.finished import FINISHED
from capsbench.run.folder import RunFolder, parse_yaml, sha256, write_whole
from capsbench.study import Plan, load_plan
from capsbench.study.plots import shows_images

RUNS, STUDY, PROVENANCE, AS_RUN = "runs.csv", "study.yaml", "provenance.yaml", "study_as_run.yaml"
_OF_A_RUN = (
    "experiment", "variant", "seed", "status", "commit", "study_commit", "digest", "started", "finished", "seconds",
    "parameters", "epochs", "peak_memory_mb", "data",
)  # fmt: skip
_HASHED = (RUNS, STUDY, AS_RUN, CORRECT, MEASURES, KEPT)
_UNKNOWN = "unknown"


def write_reference(plan: Plan, results: Path, runs: pd.DataFrame, target: Path, unfinished: bool = False) -> set[str]:
    """Write tables, plots, report.html, runs.csv, the study and provenance.yaml into `target` from the run folders.

    A run that is finished in the reference that is there, and not in `results`, stays, unless the study has changed it.
    The reference that is there is replaced once the new one is whole.

    Args:
        plan: the study.
        results: the folder of results.
        runs: from `collect`.
        target: the folder of the reference.
        unfinished: whether runs may be missing.

    Returns:
        The keys of the runs that come from the reference that was there.

    Raises:
        InputError: a run is missing or failed, was trained with code that is not committed, or was tested on other
            items than the others; the study file is not committed as it is; or a reference that stays unfinished would
            lose runs that it has.
    """
    aside = target.with_name(f".{target.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        gathered = Path(place)
        here = _finished(runs)
        earlier = gather(plan, results, here, target / KEPT, gathered)
        known = collect(plan, gathered)
        _check_finished(plan, known, unfinished)
        if unfinished:
            _check_nothing_is_lost(target, known)
        records = _records(plan, gathered, known)
        committed = _study_commit(plan)
        before = read_correct(target / CORRECT) if earlier and (target / CORRECT).exists() else None
        correct = with_earlier(plan, read_predictions(plan, gathered), before, earlier)
        try:
            aside.mkdir(parents=True)
            write_runs(known, aside / RUNS)
            shutil.copy(plan.path, aside / STUDY)
            write_correct(correct, aside)
            if measures := read_measures(plan, gathered):
                write_measures(measures, aside / MEASURES)
            pack_runs(plan, gathered, _finished(known), aside)
            keep_weights(plan, gathered, _finished(known), target, aside)
            about = {
                "study": plan.study.name,
                "made_by": f"capsbench reference {plan.path}",
                "study_commit": committed,
                "summary": summarise_provenance(plan, gathered),
                "runs": [
                    {name: record[name] for name in _OF_A_RUN if name in record}
                    | _evaluated(plan, gathered, key, record)
                    for key, record in records.items()
                ],
            }
            _write_provenance(aside, about)
            seal(aside)
            # new pictures would lack the earlier runs, whose predictions are gone
            images = not any(run.key in earlier and shows_images(run) for run in plan.runs)
            if not images:
                _keep_pictures(target, aside)
            redraw(*read_reference(aside / RUNS), aside, gathered, images)
            _replace(target, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return earlier


def read_reference(file: Path, study: Path | None = None) -> tuple[Plan, pd.DataFrame]:
    """Read runs.csv and the study that it is of, by default study.yaml beside it.

    Returns:
        The plan, and its runs as `collect` gave them, with labels and options as the study has them now.

    Raises:
        InputError: a file is missing or damaged, or the runs are not those of the study.
    """
    runs = read_runs(file)
    beside = file.parent / STUDY
    if study is None and not beside.exists():
        raise InputError(f"{file}: there is no {STUDY} beside it; name the study that the runs are of")
    plan = load_plan(study or beside)
    return plan, runs_of_plan(plan, runs)


def redraw(plan: Plan, runs: pd.DataFrame, folder: Path, results: Path | None = None, images: bool = True) -> None:
    """Write tables, plots and report.html into the folder of a reference.

    Args:
        plan: the study.
        runs: from `read_reference`.
        folder: of the reference.
        results: the folder of results; None: there are no run folders.
        images: whether plots that show images are drawn anew.
    """
    redraw_tables(plan, runs, folder, results)
    redraw_plots(plan, runs, folder, results, images)
    redraw_report(plan, runs, folder, results)


def redraw_tables(plan: Plan, runs: pd.DataFrame, folder: Path, results: Path | None = None) -> dict[str, list[Path]]:
    """Write the tables of a reference, and remove those that its study no longer has; returns the paths by table."""
    correct, measures = correct_of(plan, folder, results), measures_of(plan, folder, results)
    written = write_tables(plan, runs, folder / "tables", correct, measures)
    names = {path.name for paths in written.values() for path in paths}
    _leave(folder / "tables", names)
    _note_analysis(folder)
    return written


def redraw_plots(
    plan: Plan,
    runs: pd.DataFrame,
    folder: Path,
    results: Path | None = None,
    images: bool = True,
    experiment: str | None = None,
) -> list[Path]:
    """Draw the plots of a reference, and remove those that its study no longer has; returns the paths.

    The arguments are those of `redraw`. Without run folders no plot that shows images is drawn. The plots of one
    experiment go into plots/EXPERIMENT.
    """
    from capsbench.analysis.plots import write_plots  # seaborn takes as long to import as tables to write

    with _run_folders(plan, folder, results) as known:
        measures = measures_of(plan, folder, results)
        place = folder / "plots" / (experiment or "")
        written = write_plots(plan, runs, place, known, measures, images and results is not None, experiment)
    if experiment is not None:
        return written
    _leave(folder / "plots", {f"{name}.{ending}" for name in plan.study.plots for ending in ("png", "svg")})
    _note_analysis(folder)
    return written


def redraw_report(plan: Plan, runs: pd.DataFrame, folder: Path, results: Path | None = None) -> Path:
    """Write report.html from the runs, and from the tables and plots in the folder; returns its path."""
    correct, measures = correct_of(plan, folder, results), measures_of(plan, folder, results)
    tables = build_tables(plan, runs, correct, measures)
    if results is not None:
        facts = summarise_provenance(plan, results)
    else:
        kept = read_provenance(folder) if (folder / PROVENANCE).exists() else {}
        facts = {str(name): str(value) for name, value in (kept.get("summary") or {}).items()}
    with _run_folders(plan, folder, results) as known:
        curves = None if known is None else learning_curves(plan, known)
    path = write_report(plan, runs, folder, facts, curves, tables, measures, correct)
    _note_analysis(folder)
    return path


@contextmanager
def _run_folders(plan: Plan, folder: Path, results: Path | None) -> Iterator[Path | None]:
    """Give the folder of results, or one with what the reference kept of it; None where it kept nothing."""
    with tempfile.TemporaryDirectory() as place:
        if results is None and unpack_runs(plan, folder / KEPT, Path(place)):
            results = Path(place)
        yield results


def measures_of(plan: Plan, folder: Path, results: Path | None = None) -> Measures:
    """Return what protocols found, from the run folders or measures.json of a reference; empty without."""
    return read_measures(plan, results) if results is not None else load_measures(folder / MEASURES)


def correct_of(plan: Plan, folder: Path, results: Path | None = None) -> Correct | None:
    """Return which test items the runs got right, from correct.npz of a reference or the run folders; None without.

    Raises:
        InputError: correct.npz or predictions of a run are damaged.
    """
    if (folder / CORRECT).exists():
        return read_correct(folder / CORRECT)
    return None if results is None else read_predictions(plan, results)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read provenance.yaml of a reference. Raises InputError where it is missing or damaged."""
    path = folder / PROVENANCE
    try:
        found = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        found = None
    whole = isinstance(found, dict) and isinstance(found.get("runs"), list)
    if not whole or not all(isinstance(run, dict) and {"digest", "commit"} <= run.keys() for run in found["runs"]):
        raise InputError(f"{path}: damaged: it has no list of runs with digest and commit")
    return dict(found)


def seal(folder: Path) -> None:
    """Write into provenance.yaml the sha256 of runs.csv, of each of its rows, and of the study."""
    about = read_provenance(folder)
    rows = row_hashes(folder / RUNS)
    for run in about["runs"]:
        run["row"] = rows.get(key_of(run), (0, _UNKNOWN))[1]
    about["files"] = {name: sha256(folder / name) for name in _HASHED if (folder / name).exists()}
    _write_provenance(folder, about)


def row_hashes(path: Path) -> dict[str, tuple[int, str]]:
    """Return for the key of each run in runs.csv where its row ends, in lines from 1, and the hash of its values."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        place = next(reader).index("key")
        return {
            cells[place]: (reader.line_num, hashlib.sha256("\n".join(cells).encode()).hexdigest()[:16])
            for cells in reader
        }


def key_of(run: Mapping[str, Any]) -> str:
    """Return EXPERIMENT/VARIANT/seedN of a run in provenance.yaml."""
    return f"{run.get('experiment')}/{run.get('variant')}/seed{run.get('seed')}"


def _finished(runs: pd.DataFrame) -> list[str]:
    return [str(key) for key in runs.loc[runs["status"].isin(FINISHED), "key"]]


def _check_finished(plan: Plan, runs: pd.DataFrame, unfinished: bool) -> None:
    """Raise InputError where a run is not finished, or none is."""
    rest = runs.loc[~runs["status"].isin(FINISHED), "key"]
    if len(rest) == len(runs) or (len(rest) and not unfinished):
        raise InputError(
            f"{plan.study.name}: runs that are not finished: {len(rest)} of {len(runs)}, the first is {rest.iloc[0]}"
            + ("" if len(rest) == len(runs) else "; --unfinished keeps the others until these are")
        )


def _check_nothing_is_lost(target: Path, runs: pd.DataFrame) -> None:
    """Raise InputError where the reference that is there has finished runs that the new one would not have."""
    if not (target / RUNS).exists():
        return
    lost = [key for key in _finished(read_runs(target / RUNS)) if key not in _finished(runs)]
    if lost:
        raise InputError(
            f"{target}: {len(lost)} of its runs would be lost, the first is {lost[0]}: its {KEPT} does not have them, "
            "or the study has changed them; delete the folder if that is meant"
        )


def _keep_pictures(target: Path, aside: Path) -> None:
    """Copy the plots that show images: of runs whose folders are gone they cannot be drawn again."""
    from capsbench.analysis.plots.registry import OF_IMAGES  # brings matplotlib

    for path in (path for name in OF_IMAGES for path in (target / "plots").glob(f"{name}.*")):
        (aside / "plots").mkdir(exist_ok=True)
        shutil.copy(path, aside / "plots")


def _replace(target: Path, aside: Path) -> None:
    """Put a folder in the place of another one, whose other files stay."""
    ours = {*_HASHED, PROVENANCE, "report.html", "tables", "plots", WITH_WEIGHTS}
    for path in target.iterdir() if target.exists() else ():
        if path.name not in ours:
            shutil.move(path, aside / path.name)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)


def _records(plan: Plan, results: Path, runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return run.yaml of the finished runs, by key. Raises InputError where one is of code that is not committed."""
    records = {key: RunFolder.of(results, plan.study.name, key).read_record() or {} for key in _finished(runs)}
    loose = [record["commit"] for record in records.values() if not is_commit(record["commit"])]
    if loose:
        raise InputError(
            f"{plan.study.name}: runs trained with code that is not committed: {len(loose)}, the first with commit "
            f"{loose[0]}; commit the code, then train again"
        )
    return records


def _study_commit(plan: Plan) -> str:
    """Return the commit that holds the study file as it is now; what it says of each run, the digests hold."""
    with provenance.study_file(plan.path):
        found = provenance.study_commit()
    if found.endswith("+changes"):
        raise InputError(f"{plan.path}: is not committed as it is; commit the study, then run this again")
    return found


def _evaluated(plan: Plan, results: Path, key: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the errors of a run, and the commit that measured them.

    Raises:
        InputError: they were measured with code that is not committed.
    """
    found: dict[str, Any] = {}
    for protocol, name in {"accuracy": "test_error", "familiar": "familiar_error"}.items():
        folder = RunFolder.of(results, plan.study.name, key)
        result = folder.read_evaluation(protocol, record)
        if protocol == "accuracy":
            commit = found["evaluation_commit"] = result.get("commit", _UNKNOWN)
            if commit != _UNKNOWN and not is_commit(commit):
                raise InputError(
                    f"{key}: evaluated with code that is not committed, {commit}; commit the code, then evaluate again"
                )
        if result.get("status") == "ok":
            found[name] = result["error"]
    return found


def is_commit(text: str) -> bool:
    """Tell whether this is the whole name of a commit, with no changes on top."""
    return len(text) == 40 and all(c in "0123456789abcdef" for c in text)


def _leave(folder: Path, names: Set[str]) -> None:
    """Remove what is drawn under other names, from a reference alone: a folder of results may hold a person's files."""
    if (folder.parent / PROVENANCE).exists() and folder.is_dir():
        for path in folder.iterdir():
            if path.name not in names and path.suffix in (".csv", ".md", ".tex", ".png", ".svg"):
                path.unlink()


def _note_analysis(folder: Path) -> None:
    """Write into provenance.yaml, where there is one, at which commit tables, plots and page were drawn."""
    if (folder / PROVENANCE).exists():
        _write_provenance(folder, read_provenance(folder) | {"analysis_commit": provenance.commit()})


def _write_provenance(folder: Path, about: Mapping[str, Any]) -> None:
    last = {"runs": about["runs"]}
    ordered = {name: value for name, value in about.items() if name != "runs"} | last
    text = yaml.safe_dump(ordered, sort_keys=False, width=110, allow_unicode=True)
    write_whole(folder / PROVENANCE, lambda aside: aside.write_text(text, encoding="utf-8"))
