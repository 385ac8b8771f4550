"""In which precision the steps of a training compute: float32, or convolutions in bfloat16, or TF32 on a GPU.

Weights, routing, losses, statistics and the optimizer are float32 in each of them, and so is every evaluation.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from capsbench.errors import InputError

log = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16", "tf32"]
_Convolution = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def set_precision(model: nn.Module, precision: Precision, device: torch.device) -> Mapping[str, str | bool | int]:
    """Let the training steps of a network compute in a precision, from now on in this process.

    `bfloat16` is for its two-dimensional convolutions, but for those that a network writes out itself (the votes of
    DeepCaps) and transposed ones: operands and results, forwards and backwards, are rounded to
    bfloat16; sums within them are float32. A processor without bfloat16 does the same arithmetic in float32, without
    gaining time. `tf32` is for convolutions and matrix products of a GPU; a CPU has none and stays at float32.

    Args:
        model: its convolutions change their class; parameters stay what they are.
        precision: of `training.precision`.
        device: where the network computes.

    Returns:
        What run.yaml says of it: the precision of convolutions and of matrix products, and of bfloat16 how many
        convolutions compute in it, and whether torch has it for the device.

    Raises:
        InputError: `bfloat16` for a network without such convolutions.
    """
    allowed = precision == "tf32" and device.type == "cuda"
    _allow_tf32(convolutions=allowed, products=allowed)
    usual = "tf32" if allowed else "float32"
    found: dict[str, str | bool | int] = {"convolutions": usual, "matrix_products": usual}
    if precision == "bfloat16":
        native, convolutions = has_bfloat16(device), [m for m in model.modules() if type(m) is nn.Conv2d]
        if not convolutions:
            raise InputError(f"precision bfloat16 is of convolutions, and {type(model).__name__} has none; use float32")
        if not native:
            log.warning(
                "no convolutions in bfloat16 here: the same arithmetic is done in float32, without gaining time"
            )
        for module in convolutions:
            module.__class__ = BFloat16Conv2d if native else RoundedConv2d
        found |= {"convolutions": "bfloat16", "changed": len(convolutions), "native": native}
    return found


@contextmanager
def float32() -> Iterator[None]:
    """Compute in float32 meanwhile, on a GPU too, as every evaluation does."""
    with _tf32(allowed=False):
        yield


@contextmanager
def tf32() -> Iterator[None]:
    """Compute convolutions and matrix products of a GPU in TF32 meanwhile."""
    with _tf32(allowed=True):
        yield


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    _allow_tf32(convolutions=allowed, products=allowed)
    try:
        yield
    finally:
        _allow_tf32(*before)


def _allow_tf32(convolutions: bool, products: bool) -> None:
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.allow_tf32 = products


def has_bfloat16(device: torch.device) -> bool:
    """Tell whether torch has convolutions in bfloat16 for a device; some processors imitate them, slowly."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class BFloat16Conv2d(nn.Conv2d):
    """A convolution that computes in bfloat16 while it is trained, channels last; in and out float32."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve: _Convolution = super()._conv_forward
        if not self.training:
            return convolve(input, weight, bias)
        last = torch.channels_last
        small = None if bias is None else bias.bfloat16()
        return convolve(
            input.to(torch.bfloat16, memory_format=last), weight.to(torch.bfloat16, memory_format=last), small
        ).float()


class RoundedConv2d(nn.Conv2d):
    """The same arithmetic on a device without bfloat16: rounded to it, then computed in float32."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve: _Convolution = super()._conv_forward
        if not self.training:
            return convolve(input, weight, bias)
        small = None if bias is None else _rounded(bias)
        return _rounded(convolve(_rounded(input), _rounded(weight), small))


def _rounded(values: Tensor) -> Tensor:
    return values.bfloat16().float()
