# SPDX-License-Identifier: Apache-2.0
"""Physics: `Model` (a compiled MJCF) and `Batch` (many worlds of it, stepped together)."""

from real2sim.sim.physics.batch import Batch
from real2sim.sim.physics.model import Model, UnsupportedFeature

__all__ = ["Batch", "Model", "UnsupportedFeature"]
