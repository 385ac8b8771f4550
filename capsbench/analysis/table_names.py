"""The names of the tables of a study, without what it takes to build them: workflows ask at each start."""

from capsbench.analysis.published import PUBLISHED_IN, claims, counterpart, is_side
from capsbench.registry import MODELS, PROTOCOLS
from capsbench.study import Plan, Run
from capsbench.study.tables import BUILT_IN, OwnTable

MEASURED = "protocol-"  # of the names of protocols' tables: a protocol may be called as another table is


def table_names(plan: Plan) -> list[str]:
    """Return the names of the tables that a study gets, before anything has run.

    Those that the study names and its own ones; if it names none, all that have something to show. Questions and
    contrasts, which a study switches off with `contrasts: {}`, are always among them, and so are those of protocols.
    """
    asked = plan.study.tables
    own = [table for table in asked or [] if isinstance(table, OwnTable)]
    named = [table for table in asked or [] if isinstance(table, str)]
    chosen = bool(named) or asked == []
    compared = ["questions"] * bool(plan.study.questions) + ["contrasts"] * bool(plan.contrasts)
    names = [*named, *(name for name in compared if name not in named)] if chosen else _with_something_to_show(plan)
    return [*names, *_measured_names(plan), *(table.name for table in own)]


def is_measured(name: str) -> bool:
    """Tell whether a table is that of a protocol."""
    return name.startswith(MEASURED)


def chosen_routing(run: Run) -> str | None:
    """Return the name of the routing: an option, or the network's own; None for a network without one."""
    group = run.options.get("routing")
    name: str | None = group["name"] if group else MODELS[run.model].facts.get("routing")
    return name


def _measured_names(plan: Plan) -> list[str]:
    return [f"{MEASURED}{name}" for name in plan.study.protocols if PROTOCOLS[name].facts.get("shows")]


def _with_something_to_show(plan: Plan) -> list[str]:
    runs = {(run.experiment, run.variant): run for run in reversed(plan.runs)}.values()
    values = [(run, counterpart(run, PUBLISHED_IN[run.table])) for run in runs]
    sides = [side for claim in claims() if claim.attack is None for side in (claim.first, claim.second)]
    there = {
        **dict.fromkeys(plan.tables, True),
        "claims": any(is_side(run, value, side) for run, value in values for side in sides),
        "questions": bool(plan.study.questions),
        "contrasts": bool(plan.contrasts),
        "test_items": True,
        "routings": any(chosen_routing(run) is not None for run in runs),
        "cost": True,
        "summary": len(plan.data) > 1,
        "coverage": any(value is not None for _, value in values),
    }
    return [name for name in BUILT_IN if there.get(name)]
