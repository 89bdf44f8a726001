# SPDX-License-Identifier: Apache-2.0
"""Rotations, rigid transforms and similarities. Quaternions are wxyz; T_a_b maps coordinates in b to coordinates in a."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def quat_to_matrix(quat: Any) -> Array:
    """Rotation matrices [..., 3, 3] of quaternions wxyz [..., 4], normalised first."""
    q = np.asarray(quat, np.float64)
    w, x, y, z = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def matrix_to_quat(matrix: Any) -> Array:
    """Quaternion wxyz [4] with w >= 0 of one rotation matrix [3, 3]."""
    from scipy.spatial.transform import Rotation

    x, y, z, w = Rotation.from_matrix(np.asarray(matrix, np.float64)).as_quat()
    q = np.array([w, x, y, z])
    return -q if w < 0 else q


def quat_multiply(a: Any, b: Any) -> Array:
    """Hamilton product of quaternions wxyz, broadcasting over leading axes."""
    aw, ax, ay, az = np.moveaxis(np.asarray(a, np.float64), -1, 0)
    bw, bx, by, bz = np.moveaxis(np.asarray(b, np.float64), -1, 0)
    return np.stack(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ],
        -1,
    )


def rotation_between(a: Any, b: Any) -> Array:
    """The smallest rotation [3, 3] that takes direction a [3] to direction b [3]."""
    a = np.asarray(a, np.float64) / np.linalg.norm(a)
    b = np.asarray(b, np.float64) / np.linalg.norm(b)
    v, c = np.cross(a, b), float(a @ b)
    if c < -1 + 1e-12:
        axis = np.cross(a, np.eye(3)[np.argmin(np.abs(a))])
        axis /= np.linalg.norm(axis)
        return 2 * np.outer(axis, axis) - np.eye(3)
    skew = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
    return np.eye(3) + skew + skew @ skew / (1 + c)


@dataclass(frozen=True)
class Similarity:
    """T_a_b: x_a = scale * R @ x_b + translation."""

    scale: float
    rotation: Array  # [3, 3]
    translation: Array  # [3]

    @staticmethod
    def identity() -> Similarity:
        return Similarity(1.0, np.eye(3), np.zeros(3))

    def apply(self, points: Any) -> Array:
        """Points [..., 3] of frame b in frame a."""
        return self.scale * np.asarray(points, np.float64) @ self.rotation.T + self.translation

    def apply_pose(self, T_b_cam: Any) -> Array:
        """A rigid camera pose [4, 4] of frame b in frame a: rotated and moved, never scaled itself."""
        T = np.asarray(T_b_cam, np.float64)
        out = np.eye(4)
        out[:3, :3] = self.rotation @ T[:3, :3]
        out[:3, 3] = self.apply(T[:3, 3])
        return out

    def inverse(self) -> Similarity:
        R = self.rotation.T
        return Similarity(1 / self.scale, R, -(R @ self.translation) / self.scale)

    def __matmul__(self, other: Similarity) -> Similarity:
        return Similarity(self.scale * other.scale, self.rotation @ other.rotation, self.apply(other.translation))

    def to_json(self) -> dict[str, Any]:
        return {
            "scale": float(self.scale),
            "rotation": [float(v) for v in matrix_to_quat(self.rotation)],
            "translation": [float(v) for v in self.translation],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Similarity:
        return Similarity(
            float(data["scale"]), quat_to_matrix(data["rotation"]), np.asarray(data["translation"], np.float64)
        )


def umeyama(source: Any, target: Any, *, with_scale: bool = True) -> Similarity:
    """Least-squares similarity T_target_source of corresponding points [N, 3] (Umeyama 1991, eqs. 40-43)."""
    x, y = np.asarray(source, np.float64), np.asarray(target, np.float64)
    mx, my = x.mean(0), y.mean(0)
    U, d, Vt = np.linalg.svd((y - my).T @ (x - mx) / len(x))
    s = np.ones(3)
    if np.linalg.det(U) * np.linalg.det(Vt) < 0:
        s[2] = -1
    R = U @ np.diag(s) @ Vt
    scale = float((d * s).sum() / ((x - mx) ** 2).sum(1).mean()) if with_scale else 1.0
    return Similarity(scale, R, my - scale * R @ mx)
