"""A part of a study's runs: those of some tables, experiments and variants."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from capsbench.errors import InputError
from capsbench.registry import no_such
from capsbench.study import Plan, Run


def select(
    plan: Plan, tables: Sequence[str] = (), experiments: Sequence[str] = (), variants: Sequence[str] = ()
) -> list[Run]:
    """Return the runs that are of one of the tables, one of the experiments and one of the variants.

    Args:
        plan: the study.
        tables: of the papers, in which a run stands; none for all of them.
        experiments: by name; none for all of them.
        variants: by name as in the study, of whose grid all are meant, or with the values of a grid; none for all.

    Every name may be a pattern, such as `capsnet*`.

    Raises:
        InputError: a name or pattern fits nothing in the study, or no run fits all of them.
    """
    grids = {run.key: [run.variant, *_before_its_grid(plan, run)] for run in plan.runs}
    found = list(plan.runs)
    for kind, patterns, names in (
        ("table", tables, lambda run: [run.table]),
        ("experiment", experiments, lambda run: [run.experiment]),
        ("variant", variants, lambda run: grids[run.key]),
    ):
        known = list(dict.fromkeys(name for run in plan.runs for name in names(run)))
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise InputError(f"{plan.path}: {no_such(kind, pattern, known)}")
        if patterns:
            found = [run for run in found if any(fnmatchcase(n, p) for n in names(run) for p in patterns)]
    if not found:
        raise InputError(f"{plan.path}: no run is of all of these; 'capsbench config show {plan.path}' lists the runs")
    return found


def _before_its_grid(plan: Plan, run: Run) -> list[str]:
    """Return the variant of the study that a run comes from, where that has a grid."""
    if run.variant in plan.study.variants:
        return []
    bases = [base for base, variant in plan.study.variants.items() if variant.grid]
    return sorted((base for base in bases if run.variant.startswith(f"{base}-")), key=len)[-1:]


def with_needed(plan: Plan, runs: Sequence[Run]) -> list[Run]:
    """Add the runs that these are matched to, or whose networks their protocols take, in the order of the study."""
    keys = {run.key for run in runs}
    for run in runs:
        keys.update(
            key for protocol in plan.study.evaluations_of(run.experiment) for key in plan.taken_beside(run, protocol)
        )
    keys.update([key for run in plan.runs if run.key in keys for key in plan.before(run)])
    return [run for run in plan.runs if run.key in keys]
