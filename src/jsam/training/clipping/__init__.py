"""Per-example clipping: the fused engine, and the weights that make a round one batch."""

from __future__ import annotations

from jsam.training.clipping.capture import PerSampleLoss, cross_entropy
from jsam.training.clipping.clipped_sum import ClippedSum
from jsam.training.clipping.engine import ClippingEngine, SlowPathWarning
from jsam.training.clipping.example_weights import sample_weights

__all__ = [
    "ClippedSum",
    "ClippingEngine",
    "PerSampleLoss",
    "SlowPathWarning",
    "cross_entropy",
    "sample_weights",
]
