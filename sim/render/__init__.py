# SPDX-License-Identifier: Apache-2.0
"""Gaussian splat rendering: reference, CPU and CUDA rasterisers, and splat files."""
