"""How many bytes a training step moves on a GPU, counted from shapes: what each operation reads and writes.

Every operation counts each of its operands once, as if all of it came from memory and went back: an operand that is
read twice counts once, one that a cache holds counts too. Views, and memory that is taken and not written, cost
nothing. The kernels of EM routing are not run but counted alike, so that no GPU is needed; everything else counts as
the operations that a CPU does for it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capsbench.routing.kernels.forms import launches_counted

_TAKES_MEMORY = ("aten::empty", "aten::new_empty")


class Traffic(NamedTuple):
    """Bytes and launches of each kernel and operation by name, kernels of EM routing as `em.NAME`."""

    bytes: Counter[str]
    launches: Counter[str]


def traffic_of(step: Callable[[], None]) -> Traffic:
    """Count what a step on the CPU would move on a GPU; kernels of EM routing write nothing meanwhile."""
    counter = _Counter()

    def count(kernel: str, operands: list[Tensor]) -> None:
        counter.add(f"em.{kernel}", operands, [])  # operands that it reads and others that it writes

    with launches_counted(count), counter:
        step()
    return counter.traffic


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traffic = Traffic(Counter(), Counter())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler to tell it to leave this class alone

    def add(self, name: str, given: list[Tensor], results: list[Tensor]) -> None:
        """Count one launch: what it is given, each once, and what it writes, into the same memory or not."""
        self.traffic.bytes[name] += sum({id(operand): _bytes(operand) for operand in given}.values())
        self.traffic.bytes[name] += sum(map(_bytes, results))
        self.traffic.launches[name] += 1

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        output = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not name.startswith(_TAKES_MEMORY) and not _gives_a_view(func):
            self.add(name.removeprefix("aten::"), _tensors((args, kwargs)), _tensors(output))
        return output


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _gives_a_view(func: Any) -> bool:
    results = [result.alias_info for result in func._schema.returns]
    return any(info is not None and not info.is_write for info in results)


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of its elements; those along an expanded dimension are one."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * int(torch.Size(size for size, stride in sizes if stride).numel())
