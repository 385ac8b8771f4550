"""Which pairs of a child i and a parent j have a matrix W_ij of their own, from a child's pose to its vote.

Shapes: I children, J parents, D and d the sizes of their poses. Child number = position x types + type.

| transform                 | matrices                                              | parameters      |
|---------------------------|-------------------------------------------------------|-----------------|
| `full`                    | one per child and parent: S17                         | I J D d         |
| `shared_over_positions`   | one per child TYPE and parent, the same at all positions | types J D d     |
| `shared`                  | one per parent, the same for all children                | J D d           |
| `grouped`                 | one per GROUP of children and parent                  | groups J D d    |
| `low_rank`                | one per child and parent, W_ij = A_ij B_ij of rank k  | I J k (D + d)   |

`shared_over_positions`: the class capsules of Hinton, Sabour, Frosst 2018, *Matrix Capsules with EM Routing*, section
4, without their coordinate addition. `shared`: Gu and Tresp 2020, *Improving the Robustness of Capsule Networks to
Image Affine Transformations* (AffCapsNet), which has it with uniform routing. `grouped`: the group routing of Ding et
al. 2020, *Group Feedback Capsule Network*, which "equally splits capsules into groups where capsules locally share the
same transformation weights"; here a group is a run of neighbours in the children's order, so of neighbouring positions
where it holds more than the types of one, and their distance network is left out. One group is `shared`, I groups are
`full`. `low_rank`: a matrix as a product of two thin ones, as in Denil et al. 2013, *Predicting Parameters in Deep
Learning*; for the transforms of capsules no paper is known to us.

Sharing and thin factors save parameters. Time and memory are those of `full`: routing is given all I J matrices.
"""

import math

import torch
from torch import nn

from capsbench.registry import TRANSFORMS, Count
from capsbench.routing.contract import LayerSize, Weight


class Transform(nn.Module):
    """Base of all transforms: built as Class(size, types, std, *, options), forward() -> W [I, J, D, d].

    types: of children at each position. std: of the truncated normal distribution that the elements of W start from.
    """

    def __init__(self, size: LayerSize, matrices: int, std: float):
        super().__init__()
        self.size = size
        self.weight = _truncated_normal((matrices, size.parents, size.parent_dim, size.child_dim), std)

    def forward(self) -> Weight:
        """Return the matrices of all pairs, W [I, J, D, d]."""
        raise NotImplementedError


@TRANSFORMS.register("full")
class FullTransform(Transform):
    """One matrix per child and parent."""

    def __init__(self, size: LayerSize, types: int, std: float):
        super().__init__(size, size.children, std)

    def forward(self) -> Weight:
        """Return W [I, J, D, d]."""
        return self.weight


@TRANSFORMS.register("shared")
class SharedTransform(Transform):
    """One matrix per parent, for all children."""

    def __init__(self, size: LayerSize, types: int, std: float):
        super().__init__(size, 1, std)

    def forward(self) -> Weight:
        """Return W [I, J, D, d]."""
        return self.weight.expand(self.size.children, -1, -1, -1)


@TRANSFORMS.register("shared_over_positions")
class PositionSharedTransform(Transform):
    """One matrix per type of child and parent, at every position. Raises ValueError where I is no multiple of types."""

    def __init__(self, size: LayerSize, types: int, std: float):
        if size.children % types:
            raise ValueError(f"{size.children} capsules do not divide into positions of {types} types each")
        super().__init__(size, types, std)

    def forward(self) -> Weight:
        """Return W [I, J, D, d]."""
        positions = self.size.children // len(self.weight)
        return self.weight.expand(positions, -1, -1, -1, -1).flatten(0, 1)


@TRANSFORMS.register("grouped")
class GroupedTransform(Transform):
    """One matrix per group of neighbouring children and parent. Raises ValueError for groups of different sizes."""

    def __init__(self, size: LayerSize, types: int, std: float, *, groups: Count = 1):
        if size.children % groups:
            raise ValueError(f"{size.children} capsules do not divide into {groups} groups of equal size")
        super().__init__(size, groups, std)

    def forward(self) -> Weight:
        """Return W [I, J, D, d]."""
        in_group = self.size.children // len(self.weight)
        return self.weight[:, None].expand(-1, in_group, -1, -1, -1).flatten(0, 1)


@TRANSFORMS.register("low_rank")
class LowRankTransform(Transform):
    """One matrix per child and parent, W_ij = A_ij B_ij: A is `expansion` [I, J, D, k], B is `weight` [I, J, k, d].

    Raises ValueError for a rank above that of a full matrix.
    """

    def __init__(self, size: LayerSize, types: int, std: float, *, rank: Count = 1):
        full = min(size.parent_dim, size.child_dim)
        if rank > full:
            raise ValueError(
                f"a transform of {size.parent_dim}x{size.child_dim} has a rank of at most {full}, not {rank}"
            )
        # the elements of A B, sums of `rank` products, then have the standard deviation `std`
        factor_std = math.sqrt(std / math.sqrt(rank))
        super().__init__(size._replace(parent_dim=rank), size.children, factor_std)
        self.size = size
        self.expansion = _truncated_normal((size.children, size.parents, size.parent_dim, rank), factor_std)

    def forward(self) -> Weight:
        """Return W [I, J, D, d]."""
        return self.expansion @ self.weight


def _truncated_normal(shape: tuple[int, ...], std: float) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.zeros(shape), std=std, a=-2 * std, b=2 * std))
