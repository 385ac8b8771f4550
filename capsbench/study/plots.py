"""Which plots a study can give something to show, whatever of it has run."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from capsbench.registry import PROTOCOLS
from capsbench.study.schema import Run


def plots_of(runs: Sequence[Run], has_contrasts: bool, plots: Iterable[str], protocols: Iterable[str]) -> list[str]:
    """Return those of the plots for which a study has what they show.

    Args:
        runs: of the study.
        has_contrasts: whether variants are compared.
        plots: to choose from.
        protocols: that the study evaluates by; those that draw something come last.
    """
    there = {
        "contrasts": has_contrasts,
        "published": any(run.data.name == run.data.facts.paper for run in runs),
        "routing_iterations": any(len(numbers) > 1 for numbers in _iterations(runs).values()),
        "familiar_novel": any(run.data.has_familiar_test for run in runs),
        "coupling_entropy": any(run.options.get("routing") or "iterations" in run.options for run in runs),
        "reconstructions": any(run.options.get("decoder") for run in runs),
        "templates": any(run.model == "scae" for run in runs),
    }
    drawn = [name for name in protocols if PROTOCOLS[name].facts.get("draws")]
    return [*(plot for plot in plots if there.get(plot, True)), *drawn]


def shows_images(run: Run) -> bool:
    """Tell whether a plot shows what the network of a run draws: reconstructions, templates."""
    return bool(run.options.get("decoder")) or run.model == "scae"


def _iterations(runs: Iterable[Run]) -> Mapping[tuple[str, str], Collection[int]]:
    """Return the numbers of routing iterations of each network in each experiment."""
    found: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        number = iterations_of(run.options)
        if number is not None:
            found.setdefault((run.experiment, run.model), set()).add(number)
    return found


def iterations_of(options: Mapping[str, Any]) -> int | None:
    """Return the iterations of a network's routing; some networks have an option of their own, which is no group."""
    found: int | None = (options.get("routing") or options).get("iterations")
    return found
