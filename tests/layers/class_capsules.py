"""A transform and a routing joined to a layer, as networks join them."""

from torch import nn

from capsbench.registry import ROUTINGS, TRANSFORMS
from capsbench.routing.contract import capsule_lengths


class ClassCaps(nn.Module):
    """Inputs [B, I, d] -> poses [B, J, D], activations [B, J], couplings [B, I, J]."""

    def __init__(self, size, routing=ROUTINGS.choose("dynamic"), transform=TRANSFORMS.choose("full"), in_types=1):
        super().__init__()
        self.transform = transform.build(size, in_types, 0.1)
        self.routing = routing.build(size)

    def forward(self, inputs):
        return self.routing(inputs, capsule_lengths(inputs), self.transform())
