"""A training that another study has made already is taken from there: a copy of a study trains what is new in it."""

import functools
import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from capsbench.errors import InputError
from capsbench.run.folder import RunFolder, write_whole
from capsbench.run.record import finished_record
from capsbench.study import Run

log = logging.getLogger(__name__)

_OF_THE_STUDY = ("study", "label", "study_commit")
_MEASURED = ("predictions.npz",)  # is measured again, by the protocols of this study


def take_shared(run: Run, folder: RunFolder, record: dict[str, Any], results: Path) -> str | None:
    """Copy the training of a run from another study in the same folder of results, if one has it.

    It has the same configuration and code, ended there, and was made with the same version of torch; its files are as
    they were written. run.yaml then says under `shared_from` where it was trained; versions, machine and times are
    those of that training.

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
        if path == folder.record_path or (found := _same_training(other, record)) is None:
            continue
        folder.forget_results()
        for path in (folder.model_path, folder.metrics_path, folder.checkpoint_path):
            if (source := other.path / path.name).exists():
                write_whole(path, functools.partial(shutil.copyfile, source), lasting=True)
        files = {name: digest for name, digest in found.get("files", {}).items() if name not in _MEASURED}
        own = {name: record[name] for name in _OF_THE_STUDY}
        folder.write_record({**found, **own, "files": files, "shared_from": str(other.path)})
        log.info("%s: trained by another study already; taken from %s", run.key, other.path)
        return str(found["status"])
    return None


def _same_training(other: RunFolder, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return run.yaml of a finished run that is the same training; None where it is not, or is damaged."""
    with suppress(InputError):
        found = finished_record(other, record)
        if found is not None and found.get("versions", {}).get("torch") == record["versions"]["torch"]:
            return found
    return None
