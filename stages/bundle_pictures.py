# SPDX-License-Identifier: Apache-2.0
"""Pictures of a bundle for its report: a turntable, the collider over the splat, where the two differ, and a drop."""

from __future__ import annotations

from pathlib import Path


def write_pictures(bundle, splat, out: Path, progress) -> None:
    pass
