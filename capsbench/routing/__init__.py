"""Routing algorithms, one per file: the procedure of a paper as a pure function, and the module with its options."""

from capsbench.routing.contract import LayerSize, Routed, Routing, capsule_lengths, squash, stored_votes
from capsbench.routing.dynamic import dynamic_routing, linear_dynamic_routing
from capsbench.routing.em import conv_em_routing, em_routing

__all__ = [
    "LayerSize",
    "Routed",
    "Routing",
    "capsule_lengths",
    "conv_em_routing",
    "dynamic_routing",
    "em_routing",
    "linear_dynamic_routing",
    "squash",
    "stored_votes",
]
