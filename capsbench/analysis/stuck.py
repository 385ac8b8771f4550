"""Runs whose training never left chance, and what the routing did there, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

SATURATED = 16.6  # float32 rounds the logistic function of a larger logit to exactly 1, and its gradient to 0
ALIKE = 1e-3  # class scores that differ by less
LONG = 0.95  # of a capsule whose length is its score: the slope of the squash is a thirtieth of its steepest there
_TEXTS = {
    "entropy": "coupling entropy {:.2f}",
    "mass": "largest share of one parent {:.2f}",
    "logit": "highest class score {:.3g}",
    "range": "{:.2g} above the lowest",
}


def diagnostics_in_words(diagnostics: Sequence[Mapping[str, Any]] | None) -> str:
    """Say what a routing does, iteration by iteration, and what that amounts to at the last one.

    Args:
        diagnostics: from `capsbench.run.diagnostics.diagnose`, as run.yaml has them; what is not there is not named.
            None or empty for a network without couplings.

    Returns:
        One line; empty where there is nothing to say.
    """
    steps = []
    for row in diagnostics or []:
        found = [text.format(row[name]) for name, text in _TEXTS.items() if row.get(name) is not None]
        steps.append(f"iteration {row['iteration']}: {', '.join(found) or 'nothing measured'}")
    meaning = _meaning(diagnostics[-1]) if diagnostics else []
    return "; ".join(steps) + (f" ({'; '.join(meaning)})" if meaning else "")


def _meaning(last: Mapping[str, Any]) -> list[str]:
    entropy, mass, logit, spread = (last.get(name) for name in ("entropy", "mass", "logit", "range"))
    found = []
    if entropy is not None and entropy > 0.99:
        found.append("the couplings are uniform")
    if mass is not None and mass > 0.9:
        found.append("one parent takes all children")
    if logit is not None and logit > SATURATED:
        found.append("an activation of this score rounds to 1 and has no gradient")
    if logit is not None and spread is not None and LONG < logit - spread <= logit <= 1:
        found.append("every class capsule is nearly as long as can be, where the squash has hardly a gradient")
    if spread is not None and spread < ALIKE:
        found.append("all classes score alike")
    return found
