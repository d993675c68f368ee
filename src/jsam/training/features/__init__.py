"""Features that look at nobody's data: fixed functions of one record each, so they cost no privacy.

`ScatteringFeatures().compute(images)` gives a row of numbers for each image. A linear model on them has fewer
parameters than a convolutional network of the same accuracy, and each parameter brings its noise.
"""

from __future__ import annotations

from jsam.training.features.feature_cache import with_features
from jsam.training.features.record_features import ScatteringFeatures
from jsam.training.features.scattering import ScatteringTransform

__all__ = ["ScatteringFeatures", "ScatteringTransform", "with_features"]
