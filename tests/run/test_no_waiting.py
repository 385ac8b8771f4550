"""Between two batches nothing waits for a GPU: how often values are asked for does not grow with the steps."""

from collections import Counter

import pytest
import torch
from small_networks import SMALL
from small_runs import go, run_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from waiting import WAITING

from capsbench.run import step
from capsbench.run import train as module

METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


class Waits(TorchDispatchMode):
    """Counts what a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in WAITING:
            self.found[str(function.overloadpacket)] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def waits(monkeypatch) -> Waits:
    """Counts within an epoch's training, by operation and by method of a tensor."""
    counted, epoch = Waits(), module._train_epoch

    def of(name):
        method = getattr(Tensor, name)

        def counting(tensor, *arguments, **options):
            counted.found[name] += 1
            return method(tensor, *arguments, **options)

        return counting

    def moved(tensor, *arguments, **options):
        if "cpu" in [
            *arguments,
            *options.values(),
        ]:  # the device of the training, which is a CPU here, has its own type
            counted.found["to cpu"] += 1
        return to(tensor, *arguments, **options)

    def one_hot(labels, classes=-1):  # torch's looks at the labels on a CPU, and not on a GPU
        assert classes > 0
        return (labels.unsqueeze(-1) == torch.arange(classes)).long()

    to = Tensor.to

    def watched(*arguments):
        with monkeypatch.context() as patch, counted:
            for name in METHODS:
                patch.setattr(Tensor, name, of(name))
            patch.setattr(Tensor, "to", moved)
            patch.setattr(torch.nn.functional, "one_hot", one_hot)
            return epoch(*arguments)

    monkeypatch.setattr(module, "_train_epoch", watched)
    return counted


def counts(tmp_path, waits: Waits, images: int, model: str, **changes) -> Counter[str]:
    waits.found.clear()
    go(run_of(tmp_path, model, epochs=1, data={"train_images": images}, **changes), tmp_path / str(images))
    return Counter(waits.found)


@pytest.mark.parametrize("model", ["capsnet", "cnn_matched", "matrix_capsnet", "group_capsnet"])
def test_the_values_that_are_asked_for_in_an_epoch_do_not_grow_with_its_steps(tmp_path, waits, model):
    options = SMALL[model] if model in ("matrix_capsnet", "group_capsnet") else {}
    few, many = (counts(tmp_path, waits, 32 * steps, model, options=options) for steps in (2, 4))
    assert few == many and few


def test_an_item_per_step_would_be_seen(tmp_path, waits, monkeypatch):
    sums = step.sums_over_images
    monkeypatch.setattr(step, "sums_over_images", lambda scores, *more: sums(scores + scores.sum().item(), *more))
    few, many = (counts(tmp_path, waits, 32 * steps, "cnn_matched") for steps in (2, 8))
    assert many["item"] - few["item"] == 6
    monkeypatch.setattr(step, "sums_over_images", lambda scores, *more: sums(scores.to("cpu"), *more))
    few, many = (counts(tmp_path, waits, 32 * steps, "cnn_matched") for steps in (3, 5))
    assert many["to cpu"] - few["to cpu"] == 2


def test_a_tensor_of_numbers_per_step_would_be_seen(tmp_path, waits, monkeypatch):
    sums = step.sums_over_images
    monkeypatch.setattr(step, "sums_over_images", lambda scores, *more: sums(scores * scores.new_tensor(1.0), *more))
    few, many = (counts(tmp_path, waits, 32 * steps, "cnn_matched") for steps in (2, 5))
    assert many["aten.lift_fresh"] - few["aten.lift_fresh"] == 3


def test_an_operation_that_waits_would_be_seen(tmp_path, waits, monkeypatch):
    sums = step.sums_over_images
    monkeypatch.setattr(step, "sums_over_images", lambda scores, *more: sums(scores + len(scores.nonzero()), *more))
    few, many = (counts(tmp_path, waits, 32 * steps, "cnn_matched") for steps in (2, 3))
    assert many["aten.nonzero"] - few["aten.nonzero"] == 1
