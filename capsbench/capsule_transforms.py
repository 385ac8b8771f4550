"""Which pairs of a child i and a parent j have a matrix W_ij of their own, from a child's pose to its vote.

Shapes: I children, J parents, D and d the sizes of their poses. Child number = position x types + type.

| transform                 | matrices                                              | parameters      |
|---------------------------|-------------------------------------------------------|-----------------|
| `full`                    | one a child and parent: S17's                         | I J D d         |
| `shared_over_positions`   | one a child TYPE and parent, alike at all positions   | types J D d     |
| `shared`                  | one a parent, alike for all children                  | J D d           |
| `grouped`                 | one a GROUP of children and parent                    | groups J D d    |
| `low_rank`                | one a child and parent, W_ij = A_ij B_ij of rank k    | I J k (D + d)   |

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

from torch import Tensor


def transform_repeats(
    transform: str, in_capsules: int, in_types: int, rank: int | None, groups: int | None
) -> tuple[int, int]:
    """How often the children go through all matrices, and how many children in a row take the same one.

    Their product times the number of matrices is the number of children. Raises ValueError, in one line, for `rank`
    or `groups` with another transform than theirs, or theirs without them, and where children do not divide.
    """
    for owner, option, value in (("low_rank", "rank", rank), ("grouped", "groups", groups)):
        if transform == owner and value is None:
            raise ValueError(f"transform '{owner}' needs option '{option}'")
        if transform != owner and value is not None:
            raise ValueError(f"option '{option}' is of transform '{owner}', not of '{transform}'")
    if transform == "shared":
        return 1, in_capsules
    if transform == "shared_over_positions":
        if in_capsules % in_types:
            raise ValueError(f"{in_capsules} capsules are not so many positions of {in_types} types")
        return in_capsules // in_types, 1
    if groups is not None:
        if in_capsules % groups:
            raise ValueError(f"{in_capsules} capsules cannot be cut into {groups} groups of one size")
        return 1, in_capsules // groups
    return 1, 1


def factor_std(std: float, rank: int) -> float:
    """Standard deviation of the elements of A and B where those of A B, sums of `rank` products, shall have `std`."""
    return math.sqrt(std / math.sqrt(rank))


def all_transforms(weight: Tensor, expansion: Tensor | None, repeats: tuple[int, int]) -> Tensor:
    """The matrices that there are -> those of all children, W [I, J, D, d].

    weight [matrices, J, D, d]; of low rank it is B [I, J, k, d], and expansion is A [I, J, D, k].
    """
    if expansion is not None:
        return expansion @ weight
    if repeats == (1, 1):
        return weight
    rounds, row = repeats
    return weight[None, :, None].expand(rounds, -1, row, -1, -1, -1).flatten(0, 2)
