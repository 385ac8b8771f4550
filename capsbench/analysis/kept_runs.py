"""What a reference keeps of each run folder: all but weights, predictions and checkpoints, in one file, runs.tar.xz.

Of the runs that `keep_weights` of the study names it keeps the folder itself, with the weights, below runs/.

A study may be trained in parts, on several machines or on several days, of which no machine keeps them all. The parts
meet in the reference: what it kept of a run stands in for the folder that is gone.
"""

import io
import lzma
import shutil
import tarfile
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from capsbench.analysis.correct_bits import Correct
from capsbench.errors import InputError
from capsbench.run.folder import RunFolder, sha256, write_whole
from capsbench.study import Plan

NAME = "runs.tar.xz"
WITH_WEIGHTS = "runs"
MOST_BYTES = 5_000_000  # of weights in a reference, which is committed
_FILES = ("run.yaml", "metrics.csv", "evaluations/*.json")


def pack_runs(plan: Plan, results: Path, keys: Collection[str], target: Path) -> None:
    """Write TARGET/runs.tar.xz; the same folders give the same bytes.

    Args:
        plan: the study.
        results: the folder of results.
        keys: of the runs that are kept, EXPERIMENT/VARIANT/seedN.
        target: of the reference.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz", format=tarfile.PAX_FORMAT) as archive:
        for key in (run.key for run in plan.runs if run.key in keys):
            folder = RunFolder.of(results, plan.study.name, key).path
            for path in sorted(path for pattern in _FILES for path in folder.glob(pattern)):
                member = tarfile.TarInfo(f"{key}/{path.relative_to(folder).as_posix()}")
                member.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(member, file)
    write_whole(target / NAME, lambda aside: aside.write_bytes(content.getvalue()))


def keep_weights(plan: Plan, results: Path, keys: Collection[str], before: Path, target: Path) -> None:
    """Copy the folders of runs whose weights are kept to TARGET/runs/EXPERIMENT/VARIANT/seedN, without predictions.

    Args:
        plan: the study; `keep_weights` names the runs.
        results: the folder of results.
        keys: of the finished runs.
        before: the reference that is there, which may have weights of a run that has none in `results`.
        target: of the reference that is written.

    Raises:
        InputError: a run that is named has its weights nowhere, or they are more than MOST_BYTES together.
    """
    chosen = [key for key in keys if any(fnmatchcase(key, pattern) for pattern in plan.study.keep_weights)]
    total = 0
    for key in chosen:
        folder, kept = RunFolder.of(results, plan.study.name, key), RunFolder(target / WITH_WEIGHTS / key)
        places = (folder.model_path, RunFolder(before / WITH_WEIGHTS / key).model_path)
        known = (folder.read_record() or {}).get("files", {}).get(folder.model_path.name)
        weights = next((path for path in places if path.exists() and sha256(path) == known), None)
        if weights is None:
            raise InputError(f"{folder.model_path}: keep_weights names this run, and its weights are not there")
        total += weights.stat().st_size
        if total > MOST_BYTES:
            raise InputError(
                f"keep_weights: the weights up to {key} are {total / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}; "
                "name fewer runs"
            )
        for path in (weights, *(path for pattern in _FILES for path in folder.path.glob(pattern))):
            copy = kept.path / (path.name if path is weights else path.relative_to(folder.path))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def unpack_runs(plan: Plan, archive: Path, results: Path, without: Collection[str] = ()) -> set[str]:
    """Write the run folders that a reference kept, as far as the study still has these runs.

    Args:
        plan: the study.
        archive: the file that `pack_runs` wrote; nothing is unpacked where it is not there.
        results: the folder of results that is to have them.
        without: keys of runs that are left out.

    Returns:
        The keys of the runs that are in `results` now.

    Raises:
        InputError: the file is damaged.
    """
    places = {run.key: RunFolder.of(results, plan.study.name, run.key) for run in plan.runs if run.key not in without}
    if not archive.exists():
        return set()
    try:
        with tarfile.open(archive, mode="r:xz") as file:
            for member in file:
                name = PurePosixPath(member.name)
                depth = 4 if "evaluations" in name.parts[3:4] else 3
                folder = places.get("/".join(name.parts[:3]))
                within = PurePosixPath(*name.parts[3:])
                expected = len(name.parts) == depth + 1 and any(map(within.match, _FILES))
                content = file.extractfile(member) if expected and member.isfile() else None
                if folder is not None and content is not None:
                    path = folder.path / within
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{archive}: damaged ({error}); take it from git again") from None
    except OSError as error:
        raise InputError(f"{archive}: cannot be unpacked: {error.strerror or error}") from None
    digests = {run.key: run.digest for run in plan.runs}
    records = {key: folder.read_record() for key, folder in places.items()}
    return {key for key, record in records.items() if record is not None and record["digest"] == digests[key]}


def gather(plan: Plan, results: Path, here: Collection[str], archive: Path, gathered: Path) -> set[str]:
    """Put the runs of this folder of results, and those that only a reference has, into one folder of results.

    Args:
        plan: the study.
        results: the folder of results.
        here: keys of the runs that are finished there.
        archive: runs.tar.xz of the reference; it need not be there.
        gathered: an empty folder. It gets links to the run folders here.

    Returns:
        The keys of the runs that come from the reference.

    Raises:
        InputError: the archive is damaged.
    """
    earlier = unpack_runs(plan, archive, gathered, without=here)
    for key in here:
        link = RunFolder.of(gathered, plan.study.name, key).path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(RunFolder.of(results, plan.study.name, key).path.resolve(), target_is_directory=True)
    return earlier


def with_earlier(plan: Plan, found: Correct, before: Correct | None, earlier: Collection[str]) -> Correct:
    """Add which test items earlier runs got right to what is known of those here.

    Args:
        plan: the study.
        found: of the runs here.
        before: of the reference.
        earlier: keys of the runs that come from the reference.

    Raises:
        InputError: an experiment that keeps runs of the reference was tested on other items than these.
    """
    if before is None or not earlier:
        return found
    kept = {key: items for key, items in before.right.items() if key in earlier}
    right = {**kept, **found.right}
    for experiment in dict.fromkeys(key.split("/")[0] for key in kept):
        now, then = (one.fingerprints.get(experiment) for one in (found, before))
        if None not in (now, then) and now != then:
            raise InputError(
                f"{experiment}: the runs here were tested on other items than those of the reference; evaluate them "
                "with the same data and code, or delete the reference"
            )
    return Correct(
        {run.key: right[run.key] for run in plan.runs if run.key in right},
        {**before.clusters, **found.clusters},
        {**before.fingerprints, **found.fingerprints},
        found.mixed,
    )
