"""What several networks share: transforms of votes, decoders, residual features."""

from capsbench.layers.decoders import Decoder, DecoderSize
from capsbench.routing.contract import capsule_lengths, squash

__all__ = ["Decoder", "DecoderSize", "capsule_lengths", "squash"]
