"""Routing algorithms: pure functions of tensors, one module an algorithm."""

from capsbench.routing.dynamic import dynamic_routing, linear_dynamic_routing
from capsbench.routing.squash import squash

__all__ = ["dynamic_routing", "linear_dynamic_routing", "squash"]
