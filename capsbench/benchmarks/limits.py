"""What a machine can do at the most: matrix products and copies of memory, measured beside everything else."""

import mmap
from collections.abc import Callable

import torch
from torch import Tensor

from capsbench.benchmarks.turns import Case
from capsbench.run.precision import has_bfloat16

PRODUCT, COPY = "matrix product", "memory copy"


def limit_cases(side: int, copied: int, device: str) -> list[Case]:
    """Return the cases of the limits.

    Args:
        side: of the square matrices of a product.
        copied: bytes of a copy, which has to be read and to be written.
        device: `cpu` or `cuda`.
    """
    precisions = [torch.float32, *([torch.bfloat16] if has_bfloat16(torch.device(device)) else [])]
    cases = [_product(side, dtype, device) for dtype in precisions]
    cases.append(_copy(copied, "kept memory", lambda: _copy_to_kept(copied, device)))
    if device == "cpu":
        cases.append(_copy(copied, "fresh memory", lambda: _copy_to_fresh(copied)))
    return cases


def _product(side: int, dtype: torch.dtype, device: str) -> Case:
    operations = 2.0 * side**3
    facts = {
        "group": "limits", "name": PRODUCT, "form": str(dtype).removeprefix("torch."), "case": f"{side} x {side}",
    }  # fmt: skip

    def prepare() -> Callable[[], Tensor]:
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        return lambda: left @ right

    return Case(prepare, facts, rated=(operations / 1e9, "GFLOP/s"))


def _copy(copied: int, form: str, prepare: Callable[[], Callable[[], object]]) -> Case:
    facts = {"group": "limits", "name": COPY, "form": form, "case": f"{copied / 1e6:.0f} MB"}
    return Case(prepare, facts, rated=(2 * copied / 1e9, "GB/s"))


def _copy_to_kept(copied: int, device: str) -> Callable[[], Tensor]:
    source = torch.ones(copied // 4, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _copy_to_fresh(copied: int) -> Callable[[], None]:
    """Copy into memory that the system has just given, page by page."""
    source = torch.ones(copied // 4)

    def once() -> None:
        fresh = mmap.mmap(-1, copied)
        torch.frombuffer(fresh, dtype=torch.float32, count=copied // 4).copy_(source)

    return once
