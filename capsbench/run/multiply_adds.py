"""The multiply-adds of a forward pass: convolutions and matrix products, einsum among them.

Dynamic routing is counted as it is computed, with votes that are never stored and made again in each iteration; all
other routing in its plain form, with stored votes. Elementwise work (squash, softmax, batch norm, products of votes and
couplings that are not summed as a matrix product) is not counted.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from capsbench.routing.kernels.forms import plain_forms


def count_multiply_adds(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Count those of a network for one image at test, by torch's formulas; the network is in eval mode afterwards.

    torch.utils.flop_counter.FlopCounterMode gives the same number, in seconds more: it loads torch's compiler.

    Args:
        model: a network on the CPU; the meta device lacks some operations.
        image_shape: [C, H, W].

    Raises:
        ValueError or RuntimeError: from the network, if it cannot take such images.
    """
    counter = _Counter()
    model.eval()
    # attention by its definition: torch has no formula for the kernel that a CPU takes
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), plain_forms(), counter:
        model(torch.full((1, *image_shape), 0.5))
    return counter.operations // 2


class _Counter(TorchDispatchMode):
    """Adds up the floating-point operations of what runs while it is on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler (2 s) to tell it to leave this class alone

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        output = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.operations += formula(*args, **(kwargs or {}), out_val=output)
        return output
