"""Routing algorithms: pure functions of tensors, one module an algorithm."""

from capsbench.routing.dynamic import dynamic_routing, linear_dynamic_routing
from capsbench.routing.em import conv_em_routing, em_routing
from capsbench.routing.squash import squash

__all__ = ["conv_em_routing", "dynamic_routing", "em_routing", "linear_dynamic_routing", "squash"]
