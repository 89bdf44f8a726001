# SPDX-License-Identifier: Apache-2.0
"""The simulator: bundles, scenes, rendering, sensors."""
