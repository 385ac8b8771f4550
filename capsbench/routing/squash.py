"""The squash of Sabour, Frosst, Hinton 2017 (S17), equation 1."""

from torch import Tensor


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrink vectors to a length in [0, 1): v = |s|^2 / (1 + |s|^2) * s / |s|  (S17, equation 1).

    s: any shape, the capsule's values along `dim`; the result has the same shape. Value and gradient are finite
    everywhere: both are zero at s = 0 (the 1e-12 acts only below a length of about 1e-6).
    """
    squared_length = s.square().sum(dim=dim, keepdim=True)
    return s * (squared_length / (1 + squared_length) / (squared_length + 1e-12).sqrt())
