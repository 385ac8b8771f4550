"""What a reference keeps of each run's test: which images it got right, one bit each, and what each image shows.

correct.npz is made from predictions.npz of the run folders, which are not committed. With it, intervals over objects
and digits can be made again years later (capsbench.analysis.resampling).
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capsbench.errors import InputError
from capsbench.run.finished import finished
from capsbench.run.folder import RunFolder, write_whole
from capsbench.study import Plan, Run

NAME = "correct.npz"
_RIGHT, _CLUSTERS, _COUNT, _FINGERPRINT = "right", "clusters", "images", "fingerprint"
_NEEDED = ("scores", "labels", "factor_instance", "digits", "fingerprint")  # of predictions.npz


@dataclass(frozen=True)
class Correct:
    """Which test images the runs of a study got right.

    Attributes:
        right: bool [N] by run key; of pairs, whether both digits are right.
        clusters: by experiment, which object or digit each image shows, int [N], or [N, 2] for pairs. Experiments whose
            images are independent, or of which it is not known, are not in it: `DataSet.clusters` tells the two apart.
        fingerprints: of the test items, by experiment; empty where it is not known.
        mixed: experiments whose runs were tested on different items, or where these are known for some runs alone; each
            with the first file that differs from those before it.
    """

    right: Mapping[str, np.ndarray]
    clusters: Mapping[str, np.ndarray]
    fingerprints: Mapping[str, str]
    mixed: Mapping[str, str] = field(default_factory=dict)


def write_correct(found: Correct, target: Path) -> None:
    """Write TARGET/correct.npz.

    Args:
        found: from `read_predictions`.
        target: of the reference.

    Raises:
        InputError: runs of one experiment were tested on different items.
    """
    for experiment, path in found.mixed.items():
        raise InputError(
            f"{path}: tested on other items than the runs of {experiment} before it; evaluate all of them again with "
            "the same data and code"
        )
    arrays: dict[str, np.ndarray] = {}
    for key, right in found.right.items():
        arrays[f"{_RIGHT}/{key}"] = np.packbits(right)
        arrays[f"{_COUNT}/{key.split('/')[0]}"] = np.array(len(right))
    arrays |= {f"{_CLUSTERS}/{name}": ids for name, ids in found.clusters.items()}
    arrays |= {f"{_FINGERPRINT}/{name}": np.array(text) for name, text in found.fingerprints.items() if text}
    write_whole(target / NAME, lambda aside: _save(aside, arrays))


def read_correct(path: Path) -> Correct:
    """Read correct.npz of a reference.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        counts = {name: int(count) for name, count in _part(arrays, _COUNT).items()}
        right = {
            key: np.unpackbits(bits, count=counts[key.split("/")[0]]).astype(bool)
            for key, bits in _part(arrays, _RIGHT).items()
        }
    except FileNotFoundError:
        raise InputError(f"{path}: not there; 'make reference' writes it") from None
    except (ValueError, OSError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: damaged ({error}); take it from git again") from None
    fingerprints = {name: str(text) for name, text in _part(arrays, _FINGERPRINT).items()}
    return Correct(right, _part(arrays, _CLUSTERS), {name: fingerprints.get(name, "") for name in counts})


def read_predictions(plan: Plan, results: Path) -> Correct:
    """Return the same from run folders, without a file in between. Raises InputError where predictions are damaged."""
    right: dict[str, np.ndarray] = {}
    clusters: dict[str, np.ndarray] = {}
    items: dict[str, tuple[str, int]] = {}
    mixed: dict[str, str] = {}
    for run, folder, record in finished(plan, results):
        arrays = _predictions(folder, record)
        if not {"scores", "labels"} <= arrays.keys():
            continue
        right[run.key] = _right(arrays["scores"], arrays["labels"])
        about = str(arrays.get("fingerprint", "")), len(right[run.key])
        if items.setdefault(run.experiment, about) != about:
            mixed.setdefault(run.experiment, str(folder.predictions_path.resolve()))
        ids = cluster_ids(run, arrays)
        if ids is not None:
            clusters[run.experiment] = ids
    return Correct(right, clusters, {name: fingerprint for name, (fingerprint, _) in items.items()}, mixed)


def unlike(correct: Correct | None, runs: pd.DataFrame) -> dict[str, str]:
    """Return the runs whose items do not give their errors, with what is wrong.

    Args:
        correct: of any runs.
        runs: from `collect` or `read_runs`.
    """
    errors, found = dict(zip(runs["key"], runs["test_error"], strict=True)), {}
    for key, right in correct.right.items() if correct is not None else ():
        wrong, error = int((~right).sum()), errors.get(key)
        if error is None:
            found[key] = "is no run of runs.csv"
        elif not abs(wrong - error / 100 * len(right)) < 0.5:  # nan: it has no error
            found[key] = f"{wrong} of {len(right)} test items are wrong, but its error is {error:.6g} %"
    return found


def cluster_ids(run: Run, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return which cluster each test image of a run belongs to.

    Args:
        run: whose data set declares what its clusters are.
        arrays: of predictions.npz.

    Returns:
        Numbers from 0 in as few bytes as hold them: objects (category and instance) or digits, [N], [N, 2] for pairs.
        None where images are independent, or where instances or digits are not known.
    """
    kind, instance, digits = run.data.facts.clusters, arrays.get("factor_instance"), arrays.get("digits")
    if kind == "object" and instance is not None and (instance >= 0).all():
        names = arrays["labels"].astype(np.int64) * (int(instance.max()) + 1) + instance
    elif kind == "digit" and digits is not None:
        names = digits
    else:
        return None
    numbered = np.unique(names, return_inverse=True)[1].reshape(names.shape)
    return numbered.astype(np.min_scalar_type(numbered.max()))


def _right(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Tell which images are right, bool [N], as the protocol `accuracy` counts them."""
    import torch

    from capsbench.run.metrics import is_correct

    return is_correct(torch.from_numpy(scores), torch.from_numpy(labels)).numpy()


def _predictions(folder: RunFolder, record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    path = folder.predictions_path
    folder.check(path, record)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in _NEEDED if name in arrays.files}
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise InputError(f"{path}: damaged; delete it and evaluate the run again") from None


def _part(arrays: Mapping[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{part}/"): array for name, array in arrays.items() if name.startswith(f"{part}/")}


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # np.savez would add its own ending to a path
        np.savez_compressed(file, allow_pickle=False, **dict(arrays))
