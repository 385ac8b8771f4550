"""predictions.npz with chosen items right, as evaluation leaves it."""

import numpy as np

from capsbench.run.folder import RunFolder

CLASSES = 10


def leave_items(folder: RunFolder, right: np.ndarray, **about: np.ndarray) -> None:
    """Write which items a run got right.

    Args:
        folder: of the run.
        right: bool [N]; item k is of category k modulo 5.
        about: further arrays: factor_instance, digits, fingerprint.
    """
    labels = np.arange(len(right)) % 5
    said = np.where(right, labels, labels + 1)
    scores = np.eye(CLASSES, dtype=np.float32)[said]
    with folder.predictions_path.open("wb") as file:
        np.savez(file, scores=scores, labels=labels, **about)


def all_but(wrong: int, items: int, first: int = 0) -> np.ndarray:
    """Return which of so many items are right: all but `wrong` of them in a row."""
    places = np.arange(items)
    return (places < first) | (places >= first + wrong)
