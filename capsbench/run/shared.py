"""A training that another study has made already is taken from there: a copy of a study trains what is new in it."""

import functools
import logging
import shutil
from pathlib import Path
from typing import Any

from capsbench.errors import InputError
from capsbench.run.device import describe, device_for
from capsbench.run.folder import RunFolder, sha256, write_whole
from capsbench.run.record import finished_record, has_other_data
from capsbench.study import Run

log = logging.getLogger(__name__)

_OF_THE_STUDY = ("study", "label", "study_commit")
_MEASURED = ("predictions.npz",)  # is measured again, by the protocols of this study


def take_shared(run: Run, folder: RunFolder, record: dict[str, Any], results: Path) -> str | None:
    """Copy the training of a run from another study in the same folder of results, if one has it.

    It has the same configuration, code, data and device, ended there, and was made with the same versions of torch and
    numpy on the same kind of processor or GPU; its files are as they were written. run.yaml then says under
    `shared_from` where it was trained; versions, machine and times are those of that training.

    Args:
        run: what is to be trained.
        folder: of the run.
        record: its run.yaml, were it to start now.
        results: the folder of results.

    Returns:
        The status, or None where no other study has the run.
    """
    if folder.again_path.exists():
        return None
    for path in sorted(results.glob(f"*/runs/{run.key}/run.yaml")):
        other = RunFolder(path.parent)
        if path != folder.record_path and (found := _copied(run, folder, record, other)) is not None:
            log.info("%s: trained by another study already; taken from %s", run.key, other.path)
            return str(found["status"])
    return None


def _copied(run: Run, folder: RunFolder, record: dict[str, Any], other: RunFolder) -> dict[str, Any] | None:
    """Copy the training of another run folder, if it is the same; return its run.yaml, or None where it is not."""
    try:
        with other.locked(wait=False) as free:
            found = finished_record(other, record) if free else None
            if found is None or not _same_machine(run, record, found) or has_other_data(folder, found):
                return None
            folder.forget_results()
            for path in (folder.model_path, folder.metrics_path, folder.checkpoint_path):
                if (source := other.path / path.name).exists():
                    write_whole(path, functools.partial(shutil.copyfile, source), lasting=True)
            files = {name: digest for name, digest in found.get("files", {}).items() if name not in _MEASURED}
            if any(sha256(folder.path / name) != digest for name, digest in files.items()):
                return None
            own = {name: record[name] for name in _OF_THE_STUDY}
            folder.write_record({**found, **own, "files": files, "shared_from": str(other.path)})
            return found
    except (InputError, OSError):  # damaged, or deleted meanwhile: it is trained here
        return None


def _same_machine(run: Run, record: dict[str, Any], found: dict[str, Any]) -> bool:
    """Tell whether a training made here would have the same bits, as far as that can be said."""
    versions = [each.get("versions", {}) for each in (record, found)]
    if any(versions[0].get(name) != versions[1].get(name) for name in ("torch", "numpy")):
        return False
    wanted = found.get("config", {}).get("training", {}).get("device")
    return bool(
        wanted == run.training.device and found.get("machine", {}).get("device") == describe(device_for(wanted))
    )
