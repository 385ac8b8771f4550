"""smallNORB's protocol without its random crops: training, too, sees the middle of each image (no paper).

It shows what random crops change. All else is as in `capsbench.data.tasks.stereo`.
"""

import torch

from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.augmentation import Images
from capsbench.data.tasks.cropped import central_crops
from capsbench.data.tasks.draws import Draws
from capsbench.data.tasks.stereo import Crops, NorbOptions
from capsbench.data.tasks.task import Task
from capsbench.study import Split


class CentralCrops(Crops):
    """Standardised central crops [B, 2, crop, crop] of stereo pairs uint8 [N, 2, side, side]."""

    def _random_crops(self, whole: Images, draws: Draws) -> Images:
        """Cut the middle out of images [B, 2, side, side], in place of what the name says; nothing is drawn."""
        return central_crops(whole, self.options.crop)


def make_task(raw: Raw, split: Split, options: NorbOptions, device: torch.device) -> Task:
    """Return the central crops of a split; the options set how many crops of each image the tests show."""
    return CentralCrops(raw, options, device, views=options.test_crops if split in ("familiar", "test") else 1)
