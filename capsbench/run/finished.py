"""The runs of a study that ended, as the study has them now."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from capsbench.run.folder import RunFolder
from capsbench.study import Plan, Run

FINISHED = ("ok", "diverged")


def finished(
    plan: Plan, results: Path, statuses: Collection[str] = ("ok",)
) -> Iterator[tuple[Run, RunFolder, dict[str, Any]]]:
    """Yield each run whose folder holds one of these ends, with that folder and its run.yaml.

    A run that was trained with other options than it has now, or whose run.yaml is damaged, is left out.

    Raises:
        InputError: a run.yaml was changed since it was written.
    """
    for run in plan.runs:
        folder = RunFolder.of(results, run.study, run.key)
        record = folder.sound_record()
        if record is not None and record["status"] in statuses and record["digest"] == run.digest:
            yield run, folder, record
