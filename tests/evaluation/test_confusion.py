"""The confusion matrix against hand counts and scikit-learn."""

from types import SimpleNamespace

import numpy as np
import torch
from numpy.testing import assert_array_equal
from sklearn.metrics import confusion_matrix as scikit_learn

from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.confusion import confusion, confusion_matrix, summary_of
from capsbench.evaluation.predictions import Predictions
from capsbench.models import predicted_classes

NAMES = ("cat", "dog", "cow")


def one_hot(*classes, of=3):
    return torch.eye(of)[list(classes)]


def predictions(scores, labels):
    images = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    return Predictions(scores, labels, 4, None, images, images, None)


def context_of(scores, labels, names=NAMES):
    data = SimpleNamespace(facts=SimpleNamespace(classes=names))
    return SimpleNamespace(predictions=lambda: predictions(scores, labels), run=SimpleNamespace(data=data))


def test_counts_and_the_most_confused_pair_by_hand():
    found = confusion(context_of(one_hot(0, 1, 1, 1, 0, 1), torch.tensor([0, 0, 0, 1, 2, 2])))
    assert found["matrix"] == [[1, 2, 0], [0, 1, 0], [1, 1, 0]]
    assert found["most_confused"] == "cat taken for dog"
    assert found["most_confused_share"] == 50.0  # 2 of 4 errors
    assert found["worst_class_error"] == 100.0  # no cow was found
    assert found["never_predicted"] == 1  # cow
    assert found["classes"] == list(NAMES)


def test_it_is_scikit_learns_matrix():
    rng = np.random.default_rng(0)
    scores, labels = torch.from_numpy(rng.random((500, 7))), torch.from_numpy(rng.integers(0, 7, 500))
    expected = scikit_learn(labels, predicted_classes(scores), labels=range(7))
    assert_array_equal(confusion_matrix(scores, labels), expected)


def test_no_errors_name_no_pair():
    found = confusion(context_of(one_hot(0, 1, 2), torch.tensor([0, 1, 2])))
    assert (found["most_confused"], found["most_confused_share"], found["worst_class_error"]) == (None, 0.0, 0.0)


def test_a_class_without_images_has_no_error():
    assert summary_of(confusion_matrix(one_hot(0, 1), torch.tensor([0, 1])), NAMES)["worst_class_error"] == 0.0


def test_pairs_of_digits_by_hand():
    scores = torch.tensor([
        [0.9, 0.8, 0.1, 0.2],  # says 0 and 1, which it shows
        [0.9, 0.1, 0.8, 0.2],  # says 0 and 2, shows 0 and 1: 1 was taken for 2
        [0.1, 0.2, 0.8, 0.9],  # says 2 and 3, shows 0 and 1: which for which is not known
    ])  # fmt: skip
    labels = torch.tensor([[0, 1]] * 3)
    expected = [[2, 0, 0.5, 0.5], [0, 1, 1.5, 0.5], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert_array_equal(confusion_matrix(scores, labels), expected)
    found = summary_of(confusion_matrix(scores, labels), ("a", "b", "c", "d"))
    assert (found["matrix"][0], found["most_confused"], found["most_confused_share"]) == (
        [2, 0, 0.5, 0.5], "b taken for c", 50.0,
    )  # fmt: skip


def test_rows_are_digits_and_what_is_beside_the_diagonal_was_missed():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(400, 10, generator=generator)
    labels = torch.rand(400, 10, generator=generator).topk(2).indices.sort(dim=1).values
    matrix = confusion_matrix(scores, labels)
    assert_array_equal(matrix.sum(dim=1), labels.flatten().bincount(minlength=10))
    missed = float(matrix.sum() - matrix.trace())
    assert 100 * missed / labels.numel() == count_errors(predictions(scores, labels))["per_digit_error"]
