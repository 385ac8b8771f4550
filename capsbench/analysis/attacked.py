"""Errors under attack in the place of test errors, so that claims about attacks are judged as all others are.

FGSM is counted at each epsilon by itself, as in H18's Figure 3. Under the other attacks an image that was fooled at a
smaller epsilon of the sweep stays so. The papers' epsilon is read as a change of pixels in [0, 1]. H18 does not say
whether its own counts pixels or standardised images, where 0.1 is a smaller change.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from capsbench.analysis.measures import Measures
from capsbench.analysis.published_format import Attack

PROTOCOL = "adversarial"
EPSILON = 0.1  # for a claim without one: what the protocol's table shows


def attack_text(attack: Attack) -> str:
    """Name an attack with its epsilon: "FGSM, epsilon 0.1 of the pixel range"."""
    name = attack.name if attack.name == "transfer" else attack.name.upper()
    return f"{name}, epsilon {_epsilon(attack):g} of the pixel range"


def under_attack(runs: pd.DataFrame, measures: Measures, attack: Attack) -> pd.DataFrame:
    """Return runs with their error under an attack in % as `test_error`, and the attacked images as `test_images`.

    Runs that ended and were not attacked at this epsilon have the status "not attacked".

    Args:
        runs: from `collect` or `read_runs`.
        measures: what protocols found.
        attack: of a claim; without an epsilon, that which the protocol's table shows.
    """
    found = {key: _error(measures.get(key, {}).get(PROTOCOL, {}), attack) for key in runs["key"]}
    attacked = runs.assign(test_error=[found[key] for key in runs["key"]])
    images = [measures.get(key, {}).get(PROTOCOL, {}).get("images") for key in runs["key"]]
    attacked["test_images"] = [math.nan if n is None else float(n) for n in images]
    lacking = attacked["test_error"].isna() & (runs["status"] == "ok")
    attacked["status"] = runs["status"].mask(lacking, "not attacked")
    return attacked


def error_of_choice(attacked: pd.DataFrame, runs: pd.DataFrame, experiment: str, variant: str) -> float:
    """Return the standard error in points that comes from the choice of the attacked images; 0 where all are attacked.

    Args:
        attacked: from `under_attack`.
        runs: what it was given.
        experiment, variant: of the network.
    """
    here = (runs["experiment"] == experiment) & (runs["variant"] == variant) & (attacked["status"] == "ok")
    if not here.any():
        return 0.0
    images = float(attacked.loc[here, "test_images"].iloc[0])
    if images >= float(runs.loc[here, "test_images"].iloc[0]):
        return 0.0
    # two more images on either side (Agresti, Coull 1998): where all are fooled, another choice need not be
    share = (float(attacked.loc[here, "test_error"].mean()) / 100 * images + 2) / (images + 4)
    return 100 * math.sqrt(share * (1 - share) / (images + 4))


def _error(result: Mapping[str, Any], attack: Attack) -> float:
    alone = result.get("fgsm_error_at_each_eps_alone") if attack.name == "fgsm" else None
    errors = alone or result.get("error_by_eps", {}).get(attack.name)
    if errors is None:
        return math.nan
    at = [error for eps, error in zip(result["eps"], errors, strict=True) if math.isclose(eps, _epsilon(attack))]
    return float(at[0]) if at else math.nan


def _epsilon(attack: Attack) -> float:
    return EPSILON if attack.epsilon is None else attack.epsilon
