"""capsbench: a reproducible benchmark and ablation pipeline for capsule networks."""

__version__ = "0.1.0"
