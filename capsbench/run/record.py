"""What run.yaml says of a run from its start: what was trained, with which code, versions and machine."""

import json
from collections.abc import Mapping
from typing import Any

from capsbench.run import provenance
from capsbench.run.code_version import training_sources, training_version
from capsbench.run.folder import RunFolder, sha256
from capsbench.study import Run


def finished_record(folder: RunFolder, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return run.yaml of a finished run of the same configuration, code and data; None without one, or a damaged one.

    A run that stopped where it matched another one is finished as long as that one's familiar error is the same.

    Args:
        folder: of the run.
        record: its run.yaml, were it to start now.

    Raises:
        InputError: run.yaml was changed.
    """
    found = folder.sound_record()
    if found is None or found["status"] not in ("ok", "diverged"):
        return None
    same = identity({"code": None, **found}) == identity(record) and not has_other_data(folder, found)
    return found if same and _is_whole(folder, found) else None


def has_other_data(folder: RunFolder, record: Mapping[str, Any]) -> bool:
    """Tell whether a run was trained on other images than the data of its experiment, as last prepared, has now."""
    try:
        manifest = json.loads(folder.manifest_path.read_text(encoding="utf-8"))
        prepared = {"name": manifest["name"], "options": manifest["options"]}
        asked = {key: record["config"]["data"][key] for key in prepared}
        trained = record["data"]["fingerprint"]
        return bool(prepared == asked and manifest["train"]["fingerprint"] != trained)
    except (OSError, ValueError, KeyError, TypeError):  # not prepared, as where a run is trained by hand
        return False


def _is_whole(folder: RunFolder, found: Mapping[str, Any]) -> bool:
    """Tell whether weights and metrics are there, and as they were written."""
    known = found.get("files", {})
    paths = (folder.model_path, folder.metrics_path)
    return all(path.exists() and known.get(path.name) in (None, sha256(path)) for path in paths)


def changed_sources(record: Mapping[str, Any], run: Run) -> list[str]:
    """Return the files of the code behind a run that differ from those of now; none where run.yaml does not say."""
    then, now = record.get("sources") or {}, training_sources(run)
    return [file for file in sorted(then.keys() | now.keys()) if then and then.get(file) != now.get(file)]


def checkpoint_identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a training must have in common with a checkpoint that it continues from."""
    return {**identity(record), "data": record["data"]["fingerprint"]}


def identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a training must have in common with a finished one that stands for it."""
    return {"digest": record["digest"], "code": record["code"], "familiar_error": _goal(record)}


def _goal(record: Mapping[str, Any]) -> float | None:
    error: float | None = (record.get("match") or {}).get("familiar_error")
    return error


def first_record(run: Run) -> dict[str, Any]:
    """Return the record of a run that starts now."""
    return {
        "status": "running",
        "study": run.study, "experiment": run.experiment, "variant": run.variant, "label": run.label,
        "seed": run.seed, "digest": run.digest, "code": training_version(run),
        "sources": training_sources(run),
        "started": provenance.now(),
        "commit": provenance.commit(), "study_commit": provenance.study_commit(), "versions": provenance.versions(),
        "machine": provenance.system(),
        "config": run.model_dump(mode="json", include={"data", "model", "options", "training", "matched_digest"}),
    }  # fmt: skip
