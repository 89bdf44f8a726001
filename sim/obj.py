# SPDX-License-Identifier: Apache-2.0
"""Wavefront OBJ: triangle meshes with vertex colours ("v x y z r g b"), as much of the format as a bundle uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BundleError


def write_obj(path: Path, vertices: Any, faces: Any, colours: Any | None = None) -> None:
    """Write vertices [V, 3] (m, to 1 micrometre), triangles [F, 3] (from 0) and colours [V, 3] in 0..1 (to 1/1000)."""
    lines = ["v {:.6f} {:.6f} {:.6f}".format(*row) for row in (np.asarray(vertices, np.float64) + 0.0).tolist()]
    if colours is not None:
        rows = np.asarray(colours, np.float64).tolist()
        lines = [line + " {:.3f} {:.3f} {:.3f}".format(*row) for line, row in zip(lines, rows)]
    lines += ["f {} {} {}".format(*row) for row in (np.asarray(faces, np.int64) + 1).tolist()]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def read_vertices(path: Path) -> NDArray[np.float64]:
    """Vertices [V, 3] of an OBJ file; raises BundleError naming the file and the line that is not a vertex."""
    vertices = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.startswith("v "):
            try:
                vertices.append([float(v) for v in line.split()[1:4]])
            except ValueError as error:
                raise BundleError(
                    f"{path}: line {number}: not a vertex: {line[:80]!r}. Reconstruct the bundle."
                ) from error
            if len(vertices[-1]) != 3:
                raise BundleError(f"{path}: line {number}: a vertex has three numbers: {line[:80]!r}.")
    return np.asarray(vertices, np.float64).reshape(-1, 3)
