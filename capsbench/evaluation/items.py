"""Which items a test shows: their factors, the digits they are made of, and one hash of all that was shown."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsbench.data import Raw, fingerprint
from capsbench.data.readers import affnist
from capsbench.data.tasks.affine import Placed, digits_of_placed
from capsbench.data.tasks.pairs import Pairs, digits_of_pairs
from capsbench.data.tasks.task import Task
from capsbench.study import Data

# Options that decide how the test shows an item. The others act on training alone, or on the arrays that are hashed.
SHOWN = (
    "augment", "base_shift", "combine", "crop", "crop_offsets", "placement", "shift", "standardise", "standardise_by",
    "test_crops",
)  # fmt: skip


@dataclass(frozen=True)
class Items:
    """The evaluation images of a split, in the order of the scores.

    Attributes:
        factors: arrays [N] by name, such as the azimuth; empty where the data set has none.
        digits: int32 [N], or [N, 2] for pairs in the order of their labels: which digit of the test set an image
            shows; None where images are not made of digits, or the digits are not known.
        fingerprint: sha256 of all of them: source images, labels, factors, digits, the draws that place them, and the
            options that decide how they are shown.
    """

    factors: dict[str, np.ndarray]
    digits: np.ndarray | None
    fingerprint: str

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what predictions.npz holds of them: factor_NAME, digits, fingerprint."""
        found = {f"factor_{name}": _small(values) for name, values in self.factors.items()}
        if self.digits is not None:
            found["digits"] = self.digits
        return found | {"fingerprint": np.array(self.fingerprint)}


def shown_items(data: Data, raw: Raw, task: Task, root: Path) -> Items:
    """Describe the evaluation images of a task.

    Args:
        data: what the run is tested on.
        raw: the arrays of the split, as `read_split` gives them.
        task: made of them.
        root: the folder of raw data.
    """
    labels = task.labels.cpu().numpy()
    factors = raw.factors if len(raw.labels) == len(labels) else {}
    digits = _digits(data, raw, task, root)
    draws = task.draws.cpu().numpy() if isinstance(task, Pairs | Placed) else np.empty(0)
    mode = task.mode if isinstance(task, Placed) else None
    how = {name: value for name, value in data.options.model_dump(mode="json").items() if name in SHOWN}
    if how.get("test_crops") == 1:
        how.pop("crop_offsets")  # of 13 crops
    text = json.dumps([type(task).__name__, mode, how, sorted(factors)], sort_keys=True)
    known = np.empty(0, np.int32) if digits is None else digits
    arrays = [raw.images, labels, known, draws, *(factors[name] for name in sorted(factors))]
    return Items(dict(factors), digits, fingerprint([*arrays, np.frombuffer(text.encode(), np.uint8)]))


def _digits(data: Data, raw: Raw, task: Task, root: Path) -> np.ndarray | None:
    if isinstance(task, Pairs):
        return digits_of_pairs(task).cpu().numpy().astype(np.int32)
    if isinstance(task, Placed):
        return digits_of_placed(task).numpy().astype(np.int32)
    if data.facts.read_test is affnist.read:
        found = affnist.originals(root / (data.facts.test_folder or data.facts.folder))
        return None if found is None else found.astype(np.int32)
    return None


def _small(values: np.ndarray) -> np.ndarray:
    """Keep whole numbers in as few bytes as hold them all."""
    if values.dtype.kind not in "iu" or not len(values):
        return values
    return values.astype(np.promote_types(np.min_scalar_type(values.min()), np.min_scalar_type(values.max())))
