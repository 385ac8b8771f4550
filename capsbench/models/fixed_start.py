"""Another network, with the first weights of one seed at all seeds (no paper): which draws of a seed make its error."""

from typing import Annotated

import torch

from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Chosen, Seed
from capsbench.streams import stream_seed


@MODELS.register("fixed_start", title="fixed start")
class FixedStart(Network):
    """The network `network` with the first weights that a run of the seed `start` has.

    The seed of the run draws all that remains: the order of the images, dropout, and the images of `split: per_seed`.
    A run of the seed `start` has the errors that it has without this, on the same machine. `network` cannot be
    `cnn_matched`, whose options would name this network again, nor `scae`, which counts its steps. Not from a paper.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        network: Annotated[Chosen, MODELS.without("fixed_start", "cnn_matched", "scae")] = MODELS.choose("capsnet"),
        start: Seed = 0,
    ):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(start, "initialisation"))
            self.network: Network = network.build(image_shape, num_classes)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Return the output of the network for images [B, C, H, W]."""
        output: Output = self.network(images, labels)
        return output

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the parts of the network's loss."""
        return self.network.loss(output, targets, labels)

    def reconstruct(self, output: Output, labels: Labels | None) -> Targets | None:
        """Draw classes with the network's decoder, where it has one."""
        return self.network.reconstruct(output, labels)
