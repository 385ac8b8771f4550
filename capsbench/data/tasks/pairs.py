"""MultiMNIST (S17, section 6): two digits of different classes, each shifted separately, laid over one another.

Training pairs are drawn on the device, batch by batch; test pairs are fixed by seed and index.
"""

from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int, UInt8
from pydantic import Field
from torch import Tensor

from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.augmentation import augment, windows
from capsbench.data.tasks.draws import Draws
from capsbench.data.tasks.task import Batch, Task, to_unit_range
from capsbench.errors import InputError
from capsbench.registry import Count, Said
from capsbench.streams import indexed_draws
from capsbench.study import Augmentation, DataOptions, Split

SIDE = 36
FRAME = 28  # side of a digit
ROOM = 4  # pixels between the frame of a digit that is not shifted and each edge of 36x36
DRAWS = 5  # for each pair: its second digit, rows of the two digits, columns of the two digits
FIRST = [1, 3]  # the draws that place the first digit of a pair


class PairOptions(DataOptions):
    """Two overlaid digits (S17, section 6)."""

    shift: Annotated[
        int,
        Field(ge=0, le=8),
        Said(
            paper="4",
            code="6 in the README's commands, 4 in the fixtures of its tests",
            note="S17, 6; digits overlap less under 6",
        ),
    ] = Field(4, description="pixels, each digit, each axis, in 36x36; beyond 4 digits may be cut at the edge")
    base_shift: Annotated[
        Literal["pair", "digit"],
        Said(
            paper="silent", code="digit", note="S17, 6; digit: it keeps its place in all pairs that it comes first in"
        ),
    ] = Field("pair", description="a pair's first digit is placed anew in each pair, or always alike (by pair_seed)")
    combine: Literal["sum", "maximum"] = Field("sum", description="of pixels; a sum is clipped at 255")
    train_pairs: Annotated[int, Field(ge=1)] = Field(
        60_000, description="pairs per epoch, drawn anew in each epoch (S17: 60M in all)"
    )
    test_pairs: Count = Field(10_000, description="fixed by pair_seed and index (S17: 10M)")
    pair_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the test pairs")


def make_task(raw: Raw, split: Split, options: PairOptions, device: torch.device) -> Task:
    """Return the pairs of a split: as many as the options set, for validation as many as there are digits."""
    pairs = {"train": options.train_pairs, "test": options.test_pairs}.get(split, len(raw.labels))
    return Pairs(raw, options, pairs, device)


def digits_of_pairs(task: "Pairs") -> Int[Tensor, "pairs 2"]:
    """Return which digits of the split each evaluation pair shows, int64 [N, 2], in the order of `task.labels`."""
    pairs = torch.arange(len(task.labels), device=task.labels.device)
    digits = torch.stack(task._partners(pairs, task.draws[:, 0]), 1)
    return digits.gather(1, task.classes[digits].argsort(dim=1))


class Pairs(Task):
    """Pairs of digits: the first goes through the data set in turn, the second is any digit of another class."""

    def __init__(self, raw: Raw, options: PairOptions, pairs: int, device: torch.device):
        digits = torch.from_numpy(raw.images).to(device)  # [N, 1, 28, 28]
        self.options = options
        self.classes = torch.from_numpy(raw.labels).to(device)
        # a view [N, 1, p, p, 36, 36] of all p x p places, p = 2 shift + 1; digits that leave 36x36 are cut
        self.places = windows(digits, ROOM + options.shift, SIDE, SIDE)
        # the digits of other classes than c are all of `by_class` except the stretch of c
        self.by_class = self.classes.argsort(stable=True)
        self.class_sizes = self.classes.bincount(minlength=10)
        self.class_starts = self.class_sizes.cumsum(0) - self.class_sizes
        if int((self.class_sizes > 0).sum()) < 2:
            only = ", ".join(map(str, self.class_sizes.nonzero().flatten().tolist())) or "none"
            raise InputError(
                f"pairs need digits of at least two classes; the {len(digits):,} digits here have one: {only}; "
                "use more training images"
            )
        self.epoch_images = pairs
        self.draws = indexed_draws(options.pair_seed, "pairs", pairs, DRAWS).to(device)
        # the labels of all pairs, without composing any
        first, second = self._partners(torch.arange(pairs, device=device), self.draws[:, 0])
        self.labels = torch.stack([self.classes[first], self.classes[second]], 1).sort(dim=1).values  # [pairs, 2]

    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, draws: Draws) -> Batch:
        """Draw second digits and places anew; augmentation acts on each digit before the two are joined."""
        sources, labels = self._place(indices, draws("pairs", DRAWS))
        flat = augment(to_unit_range(sources).flatten(0, 1), augmentation, draws.for_each(2))
        changed = flat.unflatten(0, (len(indices), 2))
        return Batch(self._join(changed, 1.0), labels, changed)

    def eval_images(
        self, indices: Int[Tensor, " batch"]
    ) -> tuple[UInt8[Tensor, "batch 1 36 36"], UInt8[Tensor, "batch 2 1 36 36"]]:
        """Return pairs uint8 [B, 1, 36, 36] and their sources uint8 [B, 2, 1, 36, 36], the lower class first."""
        sources, _ = self._place(indices, self.draws[indices])
        return self._join(sources.to(torch.int16), 255).to(torch.uint8), sources

    def frame_overlap(self, side: int = FRAME, shift: int | None = None) -> Float[Tensor, " pairs"]:
        """Return which share of two squares, one around the middle of each digit, overlaps in each evaluation pair.

        Measured where the digits are placed: what is cut at the edge of 36x36 counts too.

        Args:
            side: of the squares, in pixels: 28 is a digit's whole frame, 20 the box that MNIST's ink was fitted to.
            shift: measure the pairs that this shift would give instead of those of the options.

        Returns:
            Shares from 0 to 1: [pairs].
        """
        draws = self._with_fixed_first(torch.arange(self.epoch_images, device=self.draws.device), self.draws)
        offsets = _offsets(draws, self.options.shift if shift is None else shift)
        rows, columns = offsets.unflatten(1, (2, 2)).diff(dim=2).abs().squeeze(2).unbind(1)
        overlap: Tensor = (side - rows).clamp_min(0) * (side - columns).clamp_min(0) / side**2
        return overlap

    def _place(self, indices: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Pair numbers [B], draws [B, 5] -> sources uint8 [B, 2, 1, 36, 36], labels [B, 2], the lower class first."""
        digits = torch.stack(self._partners(indices, draws[:, 0]), 1)  # [B, 2]
        offsets = _offsets(self._with_fixed_first(indices, draws), self.options.shift)
        labels, order = self.classes[digits].sort(dim=1)
        digits, rows, columns = (v.gather(1, order) for v in (digits, offsets[:, :2], offsets[:, 2:]))
        # the window at row r of the padded digit shows it ROOM + shift - r pixels below the top
        return self.places[digits, :, rows, columns], labels

    def _with_fixed_first(self, indices: Tensor, draws: Tensor) -> Tensor:
        """Under `base_shift: digit`, place each pair's first digit as in the first evaluation pair that it has."""
        if self.options.base_shift == "pair":
            return draws
        draws = draws.clone()
        draws[:, FIRST] = self.draws[indices % len(self.classes)][:, FIRST]
        return draws

    def _partners(self, indices: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Pair numbers [B], draws [B] -> first digits in turn, second digits of any other class: int64 [B] each."""
        first = indices % len(self.classes)
        own = self.classes[first]
        place = (draws * (len(self.classes) - self.class_sizes[own])).long()
        place = torch.where(place >= self.class_starts[own], place + self.class_sizes[own], place)
        return first, self.by_class[place]

    def _join(self, sources: Tensor, brightest: int | float) -> Tensor:
        """Sources [B, 2, 1, 36, 36] -> [B, 1, 36, 36]."""
        if self.options.combine == "maximum":
            return sources.amax(dim=1)
        return sources.sum(dim=1).clamp_max(brightest)


def _offsets(draws: Tensor, shift: int) -> Tensor:
    """Draws [B, 5] -> rows of both digits, columns of both digits, int64 [B, 4] in 0..2 shift."""
    return (draws[:, 1:] * (2 * shift + 1)).long()
