"""What several networks share: capsule layers, transforms of votes, decoders, residual features."""

from capsbench.layers.capsules import ClassCaps, PrimaryCaps
from capsbench.layers.decoders import Decoder, DecoderSize
from capsbench.routing.squash import capsule_lengths, squash

__all__ = ["ClassCaps", "Decoder", "DecoderSize", "PrimaryCaps", "capsule_lengths", "squash"]
