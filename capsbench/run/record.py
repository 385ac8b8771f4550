"""What run.yaml says of a run from its start: what was trained, with which code, versions and machine."""

from typing import Any

from capsbench.run import provenance
from capsbench.run.code_version import training_version
from capsbench.run.folder import RunFolder
from capsbench.study import Run


def finished_status(folder: RunFolder, record: dict[str, Any]) -> str | None:
    """Return the status of a finished run of the same configuration and code, or None where there is none."""
    found = folder.read_record()
    if found is None or found["status"] not in ("ok", "diverged"):
        return None
    same = all(found.get(key) == record[key] for key in ("digest", "code"))
    whole = folder.model_path.exists() and folder.metrics_path.exists()
    return str(found["status"]) if same and whole else None


def first_record(run: Run) -> dict[str, Any]:
    """Return the record of a run that starts now."""
    return {
        "status": "running",
        "study": run.study, "experiment": run.experiment, "variant": run.variant, "label": run.label,
        "seed": run.seed, "digest": run.digest, "code": training_version(run),
        "started": provenance.now(),
        "commit": provenance.commit(), "versions": provenance.versions(),
        "machine": provenance.system(),
        "config": run.model_dump(mode="json", include={"data", "model", "options", "training"}),
    }  # fmt: skip
