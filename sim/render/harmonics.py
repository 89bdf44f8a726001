# SPDX-License-Identifier: Apache-2.0
"""Real spherical harmonics to degree 3, in the sign convention of 3DGS files, and their rotation.

Basis: Sloan, "Efficient Spherical Harmonic Evaluation", JCGT 2013, with the Condon-Shortley phase.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError

MAX_DEGREE = 3
SAMPLE_DIRECTIONS = 64  # more than 2 * 3 + 1, well spread: condition number of the fit below 1.5


def degree_of_count(count: int) -> int:
    """Degree of `count` coefficients: 1, 4, 9 or 16."""
    for degree in range(MAX_DEGREE + 1):
        if (degree + 1) ** 2 == count:
            return degree
    raise Real2SimError(
        f"Spherical harmonics have 1, 4, 9 or 16 coefficients a channel (degree 0 to {MAX_DEGREE}), received {count}."
    )


def harmonics_basis(x: Any, y: Any, z: Any, degree: int) -> list[Any]:
    """The (degree + 1)^2 basis functions of unit directions; x, y, z: arrays or tensors of one shape."""
    basis = [0.28209479177387814 + 0 * x]
    if degree >= 1:
        c = 0.4886025119029199
        basis += [-c * y, c * z, -c * x]
    if degree >= 2:
        basis += [
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            0.31539156525252005 * (3 * z * z - 1),
            -1.0925484305920792 * x * z,
            0.5462742152960396 * (x * x - y * y),
        ]
    if degree >= 3:
        basis += [
            -0.5900435899266435 * y * (3 * x * x - y * y),
            2.890611442640554 * x * y * z,
            -0.4570457994644658 * y * (5 * z * z - 1),
            0.3731763325901154 * z * (5 * z * z - 3),
            -0.4570457994644658 * x * (5 * z * z - 1),
            1.445305721320277 * z * (x * x - y * y),
            -0.5900435899266435 * x * (x * x - 3 * y * y),
        ]
    return basis


def rotate_harmonics(sh: Any, rotation: Any) -> NDArray[np.float64]:
    """Coefficients [N, K, 3] after a rotation [3, 3]: the colour towards R d equals the old one towards d.

    Each degree is closed under rotation; its matrix is the least-squares solution of Y(R d) W = Y(d) over fixed
    directions d, exact to rounding because the system is consistent.
    """
    sh = np.asarray(sh, np.float64)
    degree = degree_of_count(sh.shape[1])
    d = _spread_directions(SAMPLE_DIRECTIONS)
    turned = d @ np.asarray(rotation, np.float64).T
    before = np.stack(harmonics_basis(d[:, 0], d[:, 1], d[:, 2], degree), -1)
    after = np.stack(harmonics_basis(turned[:, 0], turned[:, 1], turned[:, 2], degree), -1)
    out = sh.copy()
    for band in range(1, degree + 1):
        k = slice(band * band, (band + 1) ** 2)
        W = np.linalg.lstsq(after[:, k], before[:, k], rcond=None)[0]
        out[:, k] = np.einsum("ij,njc->nic", W, sh[:, k])
    return out


def _spread_directions(count: int) -> NDArray[np.float64]:
    """Unit directions [count, 3] on a golden-angle spiral."""
    i = np.arange(count) + 0.5
    z = 1 - 2 * i / count
    azimuth = i * np.pi * (3 - np.sqrt(5))
    r = np.sqrt(1 - z * z)
    return np.stack([r * np.cos(azimuth), r * np.sin(azimuth), z], -1)
