# SPDX-License-Identifier: Apache-2.0
"""The pipeline's stages, one module each."""
