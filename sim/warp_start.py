# SPDX-License-Identifier: Apache-2.0
"""Starting Warp quietly."""

from __future__ import annotations

import os

from real2sim.errors import BackendError


def start_warp() -> None:
    """Initialise Warp without its note on stderr that there is no CUDA driver; BackendError where it is missing."""
    try:
        import warp as wp
    except ImportError as error:
        raise BackendError(
            f"Rays against meshes on CUDA need the package warp-lang ({error}): pip install 'real2sim[sensors]'."
        ) from error
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        wp.init()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)
