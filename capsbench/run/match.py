"""Training until a network is as good on the familiar test as another one, so that novel tests compare like with like.

H18 (5.1) trains its CNN to the end and stops its capsules where their error on familiar viewpoints matches the CNN's.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsbench.data.tasks.task import Task
from capsbench.errors import InputError, RunError
from capsbench.models.output import Network
from capsbench.run.checkpoint import Progress
from capsbench.run.folder import RunFolder
from capsbench.run.metrics import classification_error
from capsbench.study import Run

TOLERANCE = 0.1  # points of familiar error within which two networks count as equally good
ROUNDING = 1e-9  # of a difference of two shares


def tolerance(images: int, error: float) -> float:
    """Return TOLERANCE, or one image of the familiar test, or a fortieth of the error, whichever is most, in points.

    At the papers' familiar errors, of at most 4.3 %, that is 0.1 to 0.11 where the test has a thousand images.
    """
    return max(TOLERANCE, 100 / images, error / 40)


def matched_run(run: Run, results: Path) -> dict[str, Any] | None:
    """Find the run that a run is matched to -> {"run": its key, "familiar_error": in %}, None where there is none.

    The error of a matched run that diverged, or never left chance, is None.

    Raises:
        InputError: it is not trained, or not evaluated, as the study has it now.
    """
    if run.matched_key is None:
        return None
    folder = RunFolder.of(results, run.study, run.matched_key)
    record = folder.read_record() or {}
    if record.get("status") not in ("ok", "diverged") or record["digest"] != run.matched_digest:
        raise InputError(_first(run, "trained", f"capsbench train STUDY {run.matched_key}' and 'capsbench evaluate"))
    if record["status"] == "diverged" or record.get("stuck_at_chance"):
        return {"run": run.matched_key, "familiar_error": None}
    error = folder.read_evaluation("familiar", record).get("error")
    if error is None:
        raise InputError(_first(run, "evaluated", "capsbench evaluate"))
    return {"run": run.matched_key, "familiar_error": float(error)}


def _first(run: Run, missing: str, command: str) -> str:
    return (
        f"{run.key}: matched to {run.matched_key}, which is not {missing} as the study has it now; "
        f"first run '{command} STUDY {run.matched_key}'"
    )


class Goal:
    """The familiar error, in %, at which a training ends, if it is matched to another.

    It ends at the first look within the tolerance of it; one that passes by it between two looks goes on.

    is_set: whether it is. seconds: what the looks at the familiar test took.
    """

    def __init__(self, match: Mapping[str, Any] | None, key: str, familiar: Task | None):
        if match and match["familiar_error"] is None:
            raise RunError(f"{key}: matched to {match['run']}, which diverged or never left chance: no goal to reach")
        self._error = match["familiar_error"] if match else None
        self._familiar = familiar
        self.is_set = familiar is not None
        self.tolerance = tolerance(len(familiar.labels), self._error or 0.0) if familiar is not None else TOLERANCE
        self.seconds = 0.0

    def look(self, model: Network, progress: Progress) -> None:
        """Measure the familiar error of a network in training, and note whether it reaches the goal."""
        assert self._familiar is not None and self._error is not None
        started = time.perf_counter()
        progress.familiar_error = classification_error(model, self._familiar)
        progress.matched = abs(progress.familiar_error - self._error) <= self.tolerance + ROUNDING
        model.train()
        self.seconds += time.perf_counter() - started


def outcome(match: Mapping[str, Any] | None, goal: Goal, progress: Progress) -> dict[str, Any] | None:
    """Return what run.yaml says of a matched run at its end; overshoot: by how much it is better than the other."""
    if match is None:
        return None
    here = progress.familiar_error
    overshoot = None if here is None else match["familiar_error"] - here
    return {
        **match, "reached": progress.matched, "familiar_error_here": here, "overshoot": overshoot,
        "tolerance": goal.tolerance,
    }  # fmt: skip
