"""What protocols beyond the error found: of all runs of a study, from run folders or from a reference."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsbench.errors import InputError
from capsbench.run.finished import finished
from capsbench.run.folder import ABOUT, write_whole
from capsbench.study import Plan

NAME = "measures.json"
IN_RUNS = ("accuracy", "familiar", "reconstruction")  # protocols whose numbers are columns of runs.csv

Measures = Mapping[str, Mapping[str, Mapping[str, Any]]]  # key of a run -> protocol -> result


def read_measures(plan: Plan, results: Path) -> Measures:
    """Read what the protocols of a study found, from its run folders.

    Args:
        plan: the study.
        results: the folder of results.

    Returns:
        By key of a run and name of a protocol, those results that belong to this training of the run and whose status
        is `ok` or `not applicable`, with the protocol's options, without commit and time.

    Raises:
        InputError: a result is damaged.
    """
    wanted = {
        experiment: [o.name for o in plan.study.evaluations_of(experiment) if o.name not in IN_RUNS]
        for experiment in plan.study.experiments
    }
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for run, folder, record in finished(plan, results):
        for name in wanted[run.experiment]:
            result = folder.read_evaluation(name, record)
            if result.get("status") in ("ok", "not applicable"):
                kept = {key: value for key, value in result.items() if key not in ABOUT}
                found.setdefault(run.key, {})[name] = kept
    return found


def write_measures(measures: Measures, path: Path) -> None:
    """Write measures.json of a reference, a line per run."""
    lines = [f"{json.dumps(key)}: {json.dumps(found, separators=(',', ':'))}" for key, found in measures.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_whole(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def load_measures(path: Path) -> Measures:
    """Read measures.json of a reference; empty where there is none. Raises InputError for a damaged file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
            raise ValueError("is not a mapping of runs")
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); take it from git again") from None
    return found
