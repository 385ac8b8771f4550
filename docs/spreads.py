"""Networks whose seeds differ by points, all of a study, with what is known of each. Used by docs/generate.py."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from findings import TITLES, data_title, named, table
from fitted import errors_of
from scipy.stats import norm, pearsonr

FAR = 5.0  # points of test error between two seeds, from which on a network is listed
SEEDS = 5  # that a network has to have for a mean of correlations
R = 0.9999  # as far as a correlation counts in it
TEN_STEPS = "-first-steps"  # experiments whose trainings end after ten steps
SIGNIFICANT = 0.05  # p of the correlation between the errors in training and in the test
_ONE_TEMPERATURE = "[one temperature](surprises.md#em-routing-with-one-temperature-or-a-variance-floor-of-001)"
_FLOOR = "[variance floor](surprises.md#em-routing-with-one-temperature-or-a-variance-floor-of-001)"
_LOST = "[lost classes](surprises.md#em-routing-that-loses-classes)"
_SLOW = "[learns slowly](surprises.md#networks-that-learn-slowly)"
_ONCE = "[one iteration](surprises.md#em-routing-with-one-iteration)"
_LENGTH = "[closer after 30 epochs](surprises.md#seeds-that-differ-by-points)"
_ROUNDING = "[rounding moves a seed by 5](surprises.md#first-weights-or-order)"
_SOLIDS = "[{} apart after 60 epochs](surprises.md#matrix-and-vector-capsules-on-solids)"
REASONS = {  # STUDY/EXPERIMENT/VARIANT -> what an experiment has shown; the first that fits
    "*/em_annealing-*": _ONE_TEMPERATURE,
    "diagnostics/digits/em_constant": _ONE_TEMPERATURE,
    "*/em_variance_floor-variance_floor0.01": _FLOOR,
    "diagnostics/digits/em_*floor": _FLOOR,
    "ablations/*/em_rate": _LOST,
    "ablations/*/em-iterations[35]": _LOST,
    "ablations/*/em_margin": _LOST,
    "ablations/*/em_temperature-*0.002": _LOST,
    "ablations/*/em_variance_floor-variance_floor1e-06": _LOST,
    "diagnostics/digits/em_f*": _LOST,
    "diagnostics/mnist-short/em_*": _LOST,
    "lost/mnist/em": _LOST,
    "cpu/affnist-generated/capsnet_em_twice": "[lost classes](surprises.md#affine-digits)",
    "cpu/affnist-generated/capsnet_em_decoder-iterations2": "[lost classes](surprises.md#affine-digits)",
    "claims/affdigits/capsnet_*": "follows the CNN, at whose familiar error it is stopped",
    "*/multimnist/cnn_matched_decoder": "[closer where the rate falls](surprises.md#multimnist)",
    "fair/smallnorb/dynamic_decay": "[closer where the rate falls](surprises.md#multimnist)",
    "*/self_squashed*": _LOST,
    "diagnostics/mnist-fair/squashed*": _LOST,
    "claims/toynorb/matrix-iterations1": _ROUNDING,
    "starts/toynorb/matrix-*": _ROUNDING,
    "claims/toynorb/matrix_vector-coordinate_addition": _SOLIDS.format("4.1"),
    "claims/toynorb/matrix_loss-margin": _SOLIDS.format("7.8"),
    "claims/toynorb/cnn_hinton_norb": _SOLIDS.format("6.0"),
    "*/transform-shared": _SLOW,
    "diagnostics/digits/shared": _SLOW,
    "*/vit_small": _SLOW,
    "*/multimnist/resnet20": "[batch norm's running statistics](surprises.md#multimnist)",
    "diagnostics/mnist/em_once_larg*": _ONCE,
    "diagnostics/mnist/sparse_normalised": "[learns slowly](surprises.md#sparse-and-self-routing)",
    "diagnostics/multimnist/em_pairs_zero": "[at chance](surprises.md#where-the-betas-start)",
    "diagnostics/smallnorb/bayes_bounded": "[one seed at chance](surprises.md#variational-bayes-on-smallnorb)",
    "*-first-steps/*": "ten steps of training",
    "*/smallnorb/capsnet_em*-iterations1": _ONCE,
    "*/smallnorb*/capsnet_em-iterations[23]": _LENGTH,
    "*/smallnorb*/capsnet_em_decoder-iterations[23]": _LENGTH.replace("closer", "without decoder closer"),
    "diagnostics/smallnorb-draw/*": _LENGTH.replace("closer", "not the images; closer"),
    "*/smallnorb*/capsnet_spread": _LENGTH,
    "*/smallnorb*/capsnet_cross_entropy": _LENGTH,
    "*/smallnorb*/matrix_capsnet": "[6.8 apart after 30 epochs](surprises.md#seeds-that-differ-by-points)",
    "*/smallnorb*/uniform_as_self": _LENGTH,
}


def spreads(reference: Path, study: str) -> str:
    """Return the networks of a study with two seeds `FAR` points apart: errors in training and in the test, and why."""
    runs = errors_of(reference, study)
    runs = runs[runs["status"] == "ok"].sort_values("seed", kind="stable")
    rows = [["data", "variant", "test error % by seed (largest minus smallest)", "in training", "r", "what is known"]]
    for (experiment, variant), own in runs.groupby(["experiment", "variant"], sort=False):
        spread = own["test"].max() - own["test"].min() + 1e-9  # 52.01 - 47.01 is less than 5 in floating point
        if spread >= FAR:
            alike = pearsonr(own["test"], own["train"])
            known = next((why for what, why in REASONS.items() if fnmatch(f"{study}/{experiment}/{variant}", what)), "")
            rows.append([
                data_title(runs, str(experiment)), f"`{variant}`", f"{_listed(own['test'])} ({spread:.1f})",
                _listed(own["train"]), f"{alike.statistic:.3f}".replace("-", "−"),
                known or ("as in training" if alike.pvalue < SIGNIFICANT else "not explained"),
            ])  # fmt: skip
    return table(rows) if len(rows) > 1 else f"No two seeds of a network of `{study}` are {FAR:g} points apart."


def alike(reference: Path, *studies: str) -> str:
    """Return how far the errors of seeds go with those in training, by data set, over the networks of all studies.

    Of each network that has five seeds or more, once where two studies share it: the mean of the correlations within
    networks, by Fisher's z. Trainings of ten steps are left out.
    """
    networks: dict[tuple[float, ...], dict[str, Any]] = {}
    for study in studies:
        runs = errors_of(reference, study).dropna(subset=["train", "test"]).sort_values("seed", kind="stable")
        runs = runs[~runs["experiment"].str.endswith(TEN_STEPS)]
        for _, own in runs.groupby(["experiment", "variant"], sort=False):
            varies = min(np.ptp(own["test"]), np.ptp(own["train"])) > 0
            name, unofficial = own["data_set"].iloc[0], next(iter(own["unofficial"].dropna()), "")
            if len(own) >= SEEDS and varies:
                networks[(*own["test"], *own["train"])] = {
                    "data": named(TITLES.get(name, name), unofficial),
                    "far": np.ptp(own["test"]) + 1e-9 >= FAR,
                    "z": np.arctanh(np.clip(pearsonr(own["test"], own["train"]).statistic, -R, R)),
                    "weight": len(own) - 3,
                }
    found = pd.DataFrame(networks.values())
    rows = [["data", "networks in the lists below", "mean r", "all networks", "mean r"]]
    for data, own in found.groupby("data", sort=False):
        rows.append([str(data), *_mean_of(own[own["far"]]), *_mean_of(own)])
    return table(rows)


def _mean_of(networks: pd.DataFrame) -> tuple[str, str]:
    """Return the number of networks, and their mean correlation with its 95 % interval."""
    if networks.empty:
        return "0", ""
    mean = np.average(networks["z"], weights=networks["weight"])
    half = norm.ppf(0.975) / networks["weight"].sum() ** 0.5
    low, high = np.tanh(mean - half), np.tanh(mean + half)
    return str(len(networks)), f"{np.tanh(mean):.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")


def _listed(errors: "pd.Series[float]") -> str:
    return ", ".join(f"{error:.1f}" for error in errors)
