"""MultiMNIST (S17, section 6): two digits of different classes, each shifted on its own, laid over one another.

Training pairs are drawn on the device, batch by batch; test pairs are fixed by seed and index.
"""

import torch
from torch import Tensor

from capsbench.config import Augmentation
from capsbench.data.batches import Batch, Feed, to_unit_range
from capsbench.data.catalogue import DataSet, PairOptions, Role
from capsbench.data.raw import Raw
from capsbench.data.transforms import augment, windows
from capsbench.randomness import indexed_draws

SIDE = 36
ROOM = 4  # pixels between a digit's 28x28 and each edge of 36x36
DRAWS = 5  # a pair takes: its second digit, and two offsets for each digit


def make_feed(facts: DataSet, raw: Raw, role: Role, options: PairOptions, device: torch.device) -> Feed:
    """Show as many pairs as the options say; of digits held out for validation, as many as there are digits."""
    pairs = {"train": options.train_pairs, "test": options.test_pairs}.get(role, len(raw.labels))
    return Pairs(raw, options, pairs, device)


class Pairs(Feed):
    """Pairs of digits: the first goes through the data set in turn, the second is any digit of another class."""

    def __init__(self, raw: Raw, options: PairOptions, pairs: int, device: torch.device):
        digits = torch.from_numpy(raw.images).to(device)  # [N, 1, 28, 28]
        self.options = options
        self.classes = torch.from_numpy(raw.labels).to(device)
        self.places = windows(digits, 2 * ROOM, SIDE, SIDE)  # [N, 1, 9, 9, 36, 36], a view
        # the digits of other classes than c: all of `by_class` but the stretch of c
        self.by_class = self.classes.argsort(stable=True)
        self.class_sizes = self.classes.bincount(minlength=10)
        self.class_starts = self.class_sizes.cumsum(0) - self.class_sizes
        if int((self.class_sizes > 0).sum()) < 2:
            raise ValueError("pairs need digits of at least two classes")
        self.items = pairs
        self.draws = indexed_draws(options.pair_seed, "pairs", pairs, DRAWS).to(device)
        # every pair's labels, without composing any
        first, second = self._partners(torch.arange(pairs, device=device), self.draws[:, 0])
        self.labels = torch.stack([self.classes[first], self.classes[second]], 1).sort(dim=1).values  # [pairs, 2]

    def training_batch(self, chosen: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Batch:
        """Draw the second digits and the places anew; augmentation acts on each digit before they are joined."""
        draws = torch.rand(len(chosen), DRAWS, dtype=torch.float64, generator=generator).to(chosen.device)
        sources, labels = self._place(chosen, draws)
        changed = to_unit_range(sources)
        flat = augment(changed.flatten(0, 1), augmentation, generator)
        changed = flat.unflatten(0, (len(chosen), 2))
        return Batch(self._join(changed, 1.0), labels, changed)

    def fixed_items(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return pairs uint8 [B, 1, 36, 36] and their sources uint8 [B, 2, 1, 36, 36], the lower class first."""
        sources, _ = self._place(chosen, self.draws[chosen])
        return self._join(sources.to(torch.int16), 255).to(torch.uint8), sources

    def _place(self, chosen: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Pair numbers [B], draws [B, 5] -> sources uint8 [B, 2, 1, 36, 36], labels [B, 2], the lower class first."""
        digits = torch.stack(self._partners(chosen, draws[:, 0]), 1)  # [B, 2]
        offsets = self._offsets(draws)
        labels, order = self.classes[digits].sort(dim=1)
        digits, rows, columns = (v.gather(1, order) for v in (digits, offsets[:, :2], offsets[:, 2:]))
        # the window at row r of the padded digit shows it 8 - r pixels below the top
        return self.places[digits, :, rows, columns], labels

    def frame_overlap(self) -> Tensor:
        """Return for each fixed pair how much of the digits' 28x28 frames lies over one another, 0 to 1: [pairs]."""
        side = SIDE - 2 * ROOM
        rows, columns = self._offsets(self.draws).unflatten(1, (2, 2)).diff(dim=2).abs().squeeze(2).unbind(1)
        return (side - rows) * (side - columns) / side**2

    def _offsets(self, draws: Tensor) -> Tensor:
        """Draws [B, 5] -> rows of both digits, columns of both digits, int64 [B, 4] in 0..8."""
        shift = self.options.shift
        return ROOM - shift + (draws[:, 1:] * (2 * shift + 1)).long()

    def _partners(self, chosen: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        first = chosen % len(self.classes)
        own = self.classes[first]
        place = (draws * (len(self.classes) - self.class_sizes[own])).long()
        place = torch.where(place >= self.class_starts[own], place + self.class_sizes[own], place)
        return first, self.by_class[place]

    def _join(self, sources: Tensor, brightest: float) -> Tensor:
        """Sources [B, 2, 1, 36, 36] -> [B, 1, 36, 36]."""
        if self.options.combine == "maximum":
            return sources.amax(dim=1)
        return sources.sum(dim=1).clamp_max(brightest)
