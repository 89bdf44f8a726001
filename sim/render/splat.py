# SPDX-License-Identifier: Apache-2.0
"""A set of 3D Gaussians in memory, its INRIA PLY file, and its rigid and similarity transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.sim.render.harmonics import degree_of_count, rotate_harmonics
from real2sim.sim.transforms import Similarity, matrix_to_quat, quat_multiply

Floats = NDArray[np.float32]


@dataclass
class Splat:
    """N Gaussians in one frame, as they are stored: before activation (3DGS, Kerbl et al. 2023, section 4).

    means: centres [unit of the frame], [N, 3]; quats: wxyz, any norm but zero, [N, 4]; log_scales: natural log of
    the standard deviations, [N, 3]; logit_opacities [N]; sh0 [N, 1, 3] and shN [N, K-1, 3]: spherical harmonics of
    the colour in the frame's axes, K = (degree + 1)^2, colour = max(0, harmonics(direction) + 0.5).
    """

    means: Floats
    quats: Floats
    log_scales: Floats
    logit_opacities: Floats
    sh0: Floats
    shN: Floats

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, np.ascontiguousarray(getattr(self, name), np.float32))
        n = len(self.means)
        rest = self.shN.shape[1] if self.shN.ndim == 3 else 0
        expected = {
            "means": (n, 3),
            "quats": (n, 4),
            "log_scales": (n, 3),
            "logit_opacities": (n,),
            "sh0": (n, 1, 3),
            "shN": (n, rest, 3),
        }
        for name, shape in expected.items():
            got = getattr(self, name).shape
            if got != shape:
                raise Real2SimError(f"A splat of {n} Gaussians needs {name} of shape {shape}, received {got}.")
        degree_of_count(rest + 1)

    def __len__(self) -> int:
        return len(self.means)

    @property
    def sh_degree(self) -> int:
        return degree_of_count(self.shN.shape[1] + 1)

    @property
    def scales(self) -> Floats:
        """Standard deviations [N, 3]."""
        return np.exp(self.log_scales)

    @property
    def opacities(self) -> Floats:
        """Opacities in (0, 1), [N]."""
        return (0.5 * (1 + np.tanh(0.5 * self.logit_opacities))).astype(np.float32)

    @property
    def sh(self) -> Floats:
        """All coefficients [N, K, 3]."""
        return np.concatenate([self.sh0, self.shN], axis=1)

    def select(self, mask: Any) -> Splat:
        """The Gaussians of a boolean mask [N] or an index array."""
        return Splat(**{name: getattr(self, name)[mask] for name in self.__dataclass_fields__})

    def transformed(self, T_a_b: Similarity) -> Splat:
        """The splat, given in frame b, in frame a: the same picture from cameras that are transformed alike."""
        sh = self.sh.astype(np.float64)
        rotated = rotate_harmonics(sh, T_a_b.rotation)
        return Splat(
            means=T_a_b.apply(self.means),
            quats=quat_multiply(matrix_to_quat(T_a_b.rotation), self.quats),
            log_scales=self.log_scales + np.float32(math.log(T_a_b.scale)),
            logit_opacities=self.logit_opacities.copy(),
            sh0=rotated[:, :1],
            shN=rotated[:, 1:],
        )

    def save(self, path: Path) -> None:
        """Write INRIA PLY: binary, little endian, f_rest channel-major (all red, then green, then blue)."""
        n, rest = len(self), self.shN.shape[1]
        columns = np.concatenate(
            [
                self.means,
                np.zeros((n, 3), np.float32),
                self.sh0[:, 0],
                self.shN.transpose(0, 2, 1).reshape(n, 3 * rest),
                self.logit_opacities[:, None],
                self.log_scales,
                self.quats,
            ],
            axis=1,
        )
        header = ["ply", "format binary_little_endian 1.0", f"element vertex {n}"]
        header += [f"property float {name}" for name in _property_names(rest)] + ["end_header", ""]
        Path(path).write_bytes("\n".join(header).encode("ascii") + columns.astype("<f4").tobytes())

    @staticmethod
    def load(path: Path) -> Splat:
        """Read INRIA PLY of any degree up to 3; Real2SimError names the file and the property that is wrong."""
        vertex = _read_vertices(Path(path))
        rest = sum(1 for name in vertex if name.startswith("f_rest_"))
        if rest % 3:
            raise Real2SimError(
                f"{path}: a splat has a multiple of 3 properties f_rest_*, received {rest}. Export it again."
            )
        try:
            degree_of_count(rest // 3 + 1)
        except Real2SimError as error:
            raise Real2SimError(f"{path}: properties f_rest_*: {error}") from error
        columns = {name: _column(vertex, name, Path(path)) for name in _required_names(rest // 3)}
        n = len(columns["x"])

        def stack(*names: str) -> Floats:
            return np.stack([columns[name] for name in names], axis=-1)

        shN = np.zeros((n, 0, 3), np.float32)
        if rest:
            shN = stack(*[f"f_rest_{i}" for i in range(rest)]).reshape(n, 3, rest // 3).transpose(0, 2, 1)
        return Splat(
            means=stack("x", "y", "z"),
            quats=stack("rot_0", "rot_1", "rot_2", "rot_3"),
            log_scales=stack("scale_0", "scale_1", "scale_2"),
            logit_opacities=columns["opacity"],
            sh0=stack("f_dc_0", "f_dc_1", "f_dc_2")[:, None],
            shN=shN,
        )


def concatenate(parts: Sequence[Splat]) -> Splat:
    """One splat of several of one frame, in order, at the highest of their degrees; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    most = max(part.shN.shape[1] for part in parts)
    rest = [np.pad(part.shN, ((0, 0), (0, most - part.shN.shape[1]), (0, 0))) for part in parts]
    same = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Splat.__dataclass_fields__
        if name != "shN"
    }
    return Splat(**same, shN=np.concatenate(rest))


def _required_names(rest: int) -> list[str]:
    """Properties that a splat file must have, in INRIA's order; rest = K - 1 coefficients a channel."""
    return [
        *("x", "y", "z"),
        *(f"f_dc_{i}" for i in range(3)),
        *(f"f_rest_{i}" for i in range(3 * rest)),
        "opacity",
        *(f"scale_{i}" for i in range(3)),
        *(f"rot_{i}" for i in range(4)),
    ]


def _property_names(rest: int) -> list[str]:
    """All properties that are written: INRIA's files also carry unused normals."""
    required = _required_names(rest)
    return [*required[:3], "nx", "ny", "nz", *required[3:]]


def _read_vertices(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of the file's element "vertex"."""
    from plyfile import PlyData, PlyParseError

    try:
        elements = {element.name: element for element in PlyData.read(str(path)).elements}
    except FileNotFoundError as error:
        raise Real2SimError(f"{path}: no such file. Give the path of a splat PLY.") from error
    except (PlyParseError, ValueError, KeyError, IndexError, OSError, MemoryError, OverflowError) as error:
        raise Real2SimError(f"{path}: not a complete PLY file ({error}). Export or copy it again.") from error
    if "vertex" not in elements:
        raise Real2SimError(f"{path}: a splat needs an element 'vertex', received {sorted(elements)}.")
    data = elements["vertex"].data
    return {name: data[name] for name in data.dtype.names or ()}


def _column(vertex: dict[str, NDArray[Any]], name: str, path: Path) -> Floats:
    """One property as float32 [N], finite."""
    if name not in vertex:
        raise Real2SimError(
            f"{path}: a splat needs the property {name!r}, received {', '.join(vertex)}. Is it a mesh or a plain cloud?"
        )
    values = np.asarray(vertex[name])
    if values.dtype == object:
        raise Real2SimError(f"{path}: property {name!r} must be a number, received a list property.")
    values = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise Real2SimError(
            f"{path}: property {name!r} must be finite, received {values[bad[0]]} in row {bad[0]} "
            f"({len(bad)} such rows of {len(values)}). Remove them or export the splat again."
        )
    return values
