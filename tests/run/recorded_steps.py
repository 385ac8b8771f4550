"""What a CUDA graph does, on a CPU: operations are recorded with the tensors they had, and done again into them.

Like a graph this refuses to wait, for a result or for a tensor made of numbers, and silently keeps each number that was
no tensor, and each tensor that was made outside.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from waiting import WAITING

from capsbench.run.step import Measured


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        given = {memory(tensor) for tensor in tensors((args, kwargs))}
        new = [tensor for tensor in tensors(found) if memory(tensor) not in given]  # neither a view nor in place
        self.calls.append((function, args, kwargs, new))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, new in self.calls:
            places = iter(new)
            given = {memory(tensor) for tensor in tensors((args, kwargs))}
            for tensor in tensors(function(*args, **kwargs)):
                if memory(tensor) not in given:
                    next(places).copy_(tensor)


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def recorded(function: Callable[[], Measured]) -> tuple[Measured, Callable[[], None]]:
    """Take the place of `capsbench.run.step.cuda_graph`."""
    recorder = Recorder()
    with recorder:
        measured = function()
    return measured, recorder.replay


@pytest.fixture(autouse=True)
def one_hot_of_a_gpu(monkeypatch):
    """Torch's looks at the labels on a CPU, and not on a GPU."""

    def one_hot(labels, classes=-1):
        assert classes > 0
        return (labels.unsqueeze(-1) == torch.arange(classes)).long()

    monkeypatch.setattr(torch.nn.functional, "one_hot", one_hot)
