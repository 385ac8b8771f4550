"""Which study file the folder results/NAME belongs to, so that two studies of one name do not train over each other."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from capsbench.errors import InputError
from capsbench.run.folder import write_whole
from capsbench.study import Plan, load_plan

NAME = ".study.json"


def check_owner(plan: Plan, results: Path) -> None:
    """Raise InputError where results/NAME holds the runs of another study file of the same name.

    A study file that was moved or renamed is no other one: the file of before is not there, or calls itself something
    else, and no run of the same key was configured otherwise. Nor is a copy of which parts were taken out. Results that
    were moved belong to nobody.
    """
    here = (results / plan.study.name).resolve()
    owner = _owner(here)
    if owner is None or owner["results"] != str(here):
        return
    other = Path(owner["study"])
    if other != plan.path.resolve() and _is_another(other, plan, owner.get("digests") or {}):
        raise InputError(
            f"{plan.path}: {results / plan.study.name} has the runs of another study of this name, {other}; give one "
            f"of them another name, or delete {results / plan.study.name / NAME} to let this one take them over"
        )


def claim(plan: Plan, results: Path) -> None:
    """Note that results/NAME belongs to this study file. Raises InputError where it belongs to another."""
    check_owner(plan, results)
    here = (results / plan.study.name).resolve()
    digests = {run.key: run.digest for run in plan.runs}
    owner = {"study": str(plan.path.resolve()), "results": str(here), "digests": digests}
    if _owner(here) != owner:
        text = json.dumps(owner, indent=2) + "\n"
        with suppress(FileNotFoundError):  # jobs on several machines may note it at once
            write_whole(here / NAME, lambda aside: aside.write_text(text, encoding="utf-8"))


def _owner(here: Path) -> dict[str, Any] | None:
    """Return what is noted in a folder; None where that is nothing, or damaged."""
    try:
        owner = json.loads((here / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) and {"study", "results"} <= owner.keys() else None


def _is_another(other: Path, plan: Plan, then: Mapping[str, str]) -> bool:
    """Tell whether a study is another one than that of before; then: the digests of its runs, if it is gone."""
    try:
        if other.read_bytes() == plan.path.read_bytes():
            return False
        found = load_plan(other)
    except (OSError, InputError):
        return _differ(plan, then)
    return found.study.name == plan.study.name and _differ(plan, {run.key: run.digest for run in found.runs})


def _differ(plan: Plan, digests: Mapping[str, str]) -> bool:
    return any(digests.get(run.key, run.digest) != run.digest for run in plan.runs)
