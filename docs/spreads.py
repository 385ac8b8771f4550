"""Networks whose seeds differ by points, all of a study, with what is known of each. Used by docs/generate.py."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from findings import TITLES, data_title, named, table
from fitted import errors_of
from scipy.stats import norm, pearsonr

from capsbench.analysis.correct_bits import NAME as CORRECT
from capsbench.analysis.correct_bits import read_correct
from capsbench.analysis.measures import NAME as MEASURES
from capsbench.analysis.measures import load_measures
from capsbench.data.catalogue import CATALOGUE, TOYS

FAR = 5.0  # points of test error between two seeds, from which on a network is listed
SEEDS = 5  # that a network has to have for a mean of correlations
R = 0.9999  # as far as a correlation counts in it
TEN_STEPS = "-first-steps"  # experiments whose trainings end after ten steps
SIGNIFICANT = 0.05  # p of the correlation between the errors in training and in the test
DRAWS = 200  # of shuffled seeds
IN_STEREO = [name for name, facts in CATALOGUE.items() if facts.in_stereo]  # solids and smallNORB
MOST = 0.5  # share of the difference between the worst and the best seed that is most of it
_ONE_CLASS = "[mostly one class](surprises/seeds.md#classes-that-seeds-take-for-one-another)"
_ONE_TEMPERATURE = "[one temperature](surprises/em.md#em-routing-with-one-temperature-or-a-variance-floor-of-001)"
_FLOOR = "[variance floor](surprises/em.md#em-routing-with-one-temperature-or-a-variance-floor-of-001)"
_LOST = "[lost classes](surprises/em.md#em-routing-that-loses-classes)"
_SLOW = "[learns slowly](surprises/networks.md#networks-that-learn-slowly)"
_ONCE = "[one iteration](surprises/em.md#em-routing-with-one-iteration)"
_LENGTH = "[closer after 30 epochs](surprises/seeds.md#seeds-that-differ-by-points)"
_LATER = "[{} apart after 30 epochs](surprises/seeds.md#after-more-epochs)"
_NEAR = "[{} where digits lie as in training](surprises/affine.md#{})"
_DIGITS = "[1.7 apart after 40 epochs](surprises/routings.md#self-routing-on-the-embedded-digits)"
_ROUNDING = "[rounding moves a seed by 5](surprises/seeds.md#first-weights-or-order)"
_SOLIDS = "[{} apart after 60 epochs](surprises/networks.md#matrix-and-vector-capsules-on-solids)"
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
    "cpu/affnist-generated/capsnet_em_twice": "[lost classes](surprises/affine.md#affine-digits)",
    "cpu/affnist-generated/capsnet_em_decoder-iterations2": "[lost classes](surprises/affine.md#affine-digits)",
    "cpu/affnist-generated/capsnet_routings-sparse": _LATER.format("3.7"),
    "cpu/affnist-generated/capsnet_self": _LATER.format("8.5"),
    "cpu/affnist-generated/matrix_capsnet": _NEAR.format("3.6", "where-the-digits-lie"),
    "diagnostics/affine-far/resnet20_ablated": _NEAR.format("3.2", "weights-per-position"),
    "diagnostics/affine-far/residual_far_routed": _NEAR.format("3.4", "weights-per-position"),
    "cpu/smallnorb/heinsen_lengths": _LATER.format("4.8"),
    "cpu/affnist-generated/capsnet_em_twice_whole": _LATER.format("8.1"),
    "claims/affdigits/capsnet_*": "follows the CNN, at whose familiar error it is stopped",
    "*/multimnist/cnn_matched_decoder": "[closer where the rate falls](surprises/multimnist.md#multimnist)",
    "fair/smallnorb/dynamic_decay": "[closer where the rate falls](surprises/multimnist.md#multimnist)",
    "*/self_squashed*": _LOST,
    "diagnostics/mnist-fair/squashed*": _LOST,
    "starts/mnist/squashed-*": _LOST,
    "ablations/digits/self": _DIGITS,
    "diagnostics/digits/self_digits": _DIGITS,
    "claims/toynorb/matrix-iterations1": _ROUNDING,
    "starts/toynorb/matrix-*": _ROUNDING,
    "claims/toynorb/matrix_vector-coordinate_addition": _SOLIDS.format("4.1"),
    "claims/toynorb/matrix_vector-no_coordinate_addition": _SOLIDS.format("10.1"),
    "claims/toynorb/matrix_loss-cross_entropy": _SOLIDS.format("14.5"),
    "claims/toynorb/matrix_loss-margin": _SOLIDS.format("7.8"),
    "claims/toynorb/cnn_hinton_norb": _SOLIDS.format("6.0"),
    "*/transform-shared": _SLOW,
    "diagnostics/digits/shared": _SLOW,
    "*/vit_small": _SLOW,
    "*/multimnist/resnet20": "[batch norm's running statistics](surprises/multimnist.md#multimnist)",
    "diagnostics/mnist/em_once_larg*": _ONCE,
    "diagnostics/mnist/sparse_normalised": "[learns slowly](surprises/routings.md#sparse-and-self-routing)",
    "diagnostics/multimnist/em_pairs_zero": "[at chance](surprises/em.md#where-the-betas-start)",
    "diagnostics/smallnorb/bayes_bounded": "[one seed at chance](surprises/routings.md#variational-bayes-on-smallnorb)",
    "*-first-steps/*": "ten steps of training",
    "*/smallnorb/capsnet_em*-iterations1": _ONCE,
    "*/smallnorb*/capsnet_em-iterations[23]": _LENGTH,
    "*/smallnorb*/capsnet_em_decoder-iterations[23]": _LENGTH.replace("closer", "without decoder closer"),
    "diagnostics/smallnorb-draw/*": _LENGTH.replace("closer", "not the images; closer"),
    "*/smallnorb*/capsnet_spread": _LENGTH,
    "*/smallnorb*/capsnet_cross_entropy": _LENGTH,
    "*/smallnorb*/matrix_capsnet": "[6.8 apart after 30 epochs](surprises/seeds.md#seeds-that-differ-by-points)",
    "*/smallnorb*/uniform_as_self": _LENGTH,
}


def spreads(reference: Path, study: str) -> str:
    """Return the networks of a study with two seeds `FAR` points apart: errors in training and in the test, and why."""
    runs = errors_of(reference, study)
    runs = runs[runs["status"] == "ok"].sort_values("seed", kind="stable")
    classes = _Classes(reference / study)
    rows = [
        [
            "data",
            "variant",
            "test error % by seed (largest minus smallest)",
            "in training",
            "r",
            "class that differs most",
            "what is known",
        ]
    ]
    for (experiment, variant), own in runs.groupby(["experiment", "variant"], sort=False):
        spread = own["test"].max() - own["test"].min() + 1e-9  # 52.01 - 47.01 is less than 5 in floating point
        if spread >= FAR:
            alike = pearsonr(own["test"], own["train"])
            listed, share = classes.most_different(own)
            rest = _ONE_CLASS if share >= MOST else "not explained"
            known = next((why for what, why in REASONS.items() if fnmatch(f"{study}/{experiment}/{variant}", what)), "")
            rows.append([
                data_title(runs, str(experiment)), f"`{variant}`", f"{_listed(own['test'])} ({spread:.1f})",
                _listed(own["train"]), f"{alike.statistic:.3f}".replace("-", "−"), listed,
                known or ("as in training" if alike.pvalue < SIGNIFICANT else rest),
            ])  # fmt: skip
    return table(rows) if len(rows) > 1 else f"No two seeds of a network of `{study}` are {FAR:g} points apart."


class _Classes:
    """The test errors of the classes, for the runs of a reference of which they are known.

    They are known from confusion matrices, and for solids and smallNORB from which images were right: their 25 test
    objects are numbered class by class.
    """

    def __init__(self, study: Path):
        self._correct, self._measures = read_correct(study / CORRECT), load_measures(study / MEASURES)

    def of(self, key: str) -> pd.DataFrame | None:
        """Return "error" in % and "share" of the test images by class of one run; None where they are not known."""
        if confusion := self._measures.get(key, {}).get("confusion"):
            counts = np.array(confusion["matrix"])
            error, share = 100 * (1 - counts.diagonal() / counts.sum(axis=1)), counts.sum(axis=1) / counts.sum()
            return pd.DataFrame({"error": error, "share": share}, index=confusion["classes"])
        right, objects = self._correct.right.get(key), self._correct.clusters.get(key.split("/")[0])
        if right is None or objects is None or objects.ndim > 1 or objects.max() + 1 != len(TOYS) ** 2:
            return None
        images = np.bincount(objects // len(TOYS))
        wrong = np.bincount(objects[~right] // len(TOYS), minlength=len(TOYS))
        return pd.DataFrame({"error": 100 * wrong / images, "share": images / len(right)}, index=list(TOYS))

    def most_different(self, own: pd.DataFrame) -> tuple[str, float]:
        """Return the class that makes most of the difference between the worst and the best seed, and how much.

        Its name with its error by seed, and its share of the difference; ("", 0) where the classes are not known.
        """
        found = {key: self.of(key) for key in own.sort_values("test", kind="stable")["key"]}
        known = {key: classes for key, classes in found.items() if classes is not None}
        if len(known) < len(found):
            return "", 0.0
        best, *_, worst = known.values()
        parts = worst["share"] * (worst["error"] - best["error"])
        most, share = parts.idxmax(), _largest_share(parts.to_numpy())
        return f"{most}: " + ", ".join(f"{known[key]['error'][most]:.0f}" for key in own["key"]), share


def one_class(reference: Path, *studies: str) -> str:
    """Return how often one class makes most of a difference on solids and smallNORB, and how often by chance.

    Over the networks of the lists that have five seeds, each once. By chance: if the seeds of each class are shuffled.
    """
    random, networks = np.random.default_rng(0), {}
    for study in studies:
        runs, classes = errors_of(reference, study), _Classes(reference / study)
        runs = runs[runs["data_set"].isin(IN_STEREO) & (runs["status"] == "ok")]
        for _, own in runs.groupby(["experiment", "variant"], sort=False):
            found = [classes.of(key) for key in own["key"]]
            if np.ptp(own["test"]) + 1e-9 >= FAR and len(own) >= SEEDS and all(each is not None for each in found):
                networks[tuple(sorted(own["test"]))] = np.array([each["error"] for each in found if each is not None])
    seen = sum(_most(errors) for errors in networks.values())
    shuffled = [_most(random.permuted(errors, axis=0)) for errors in networks.values() for _ in range(DRAWS)]
    apart = [errors.mean(axis=1).std(ddof=1) for errors in networks.values()]
    independent = [(errors.var(axis=0, ddof=1).sum()) ** 0.5 / len(TOYS) for errors in networks.values()]
    ratio = np.median(np.divide(apart, independent))
    seen_share, by_chance = 100 * seen / len(networks), 100 * np.mean(shuffled)
    return (
        f"On solids and smallNORB one class makes half or more of what the worst seed loses against the best in "
        f"{seen_share:.0f} % of {len(networks)} networks. It would in {by_chance:.0f} % if the errors of classes had "
        f"nothing to do with one another (seeds shuffled within each class). The standard deviation of the error "
        f"between seeds is {ratio:.2f} times what it would then be, in the median."
    )


def _most(errors: "np.ndarray[Any, np.dtype[np.float64]]") -> bool:
    """Tell whether one class makes most of the difference between the worst and the best of errors [seeds, classes]."""
    whole = errors.mean(axis=1)
    return _largest_share(errors[whole.argmax()] - errors[whole.argmin()]) >= MOST


def _largest_share(parts: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    """Return the largest share of the loss that is of one class; parts [classes]: errors of the worst less the best."""
    return float(parts.max() / parts.clip(min=0).sum())


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
