# SPDX-License-Identifier: Apache-2.0
"""A COLMAP model (cameras and images, .bin or .txt) as known poses. Read here, not by COLMAP, which trusts its files.

Format: https://colmap.github.io/format.html. Poses there are camera from world; ours are world from camera.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.sim.transforms import quat_to_matrix
from real2sim.stages.known_poses import KnownPose, PoseFile, WrongPose

FOLDERS = ("sparse/0", "sparse", "colmap/sparse/0", "colmap/sparse")
# id: name, parameters, and which of them are fx fy cx cy k1 k2 p1 p2 (None: zero)
MODELS: dict[int, tuple[str, int, tuple[int | None, ...]]] = {
    0: ("SIMPLE_PINHOLE", 3, (0, 0, 1, 2, None, None, None, None)),
    1: ("PINHOLE", 4, (0, 1, 2, 3, None, None, None, None)),
    2: ("SIMPLE_RADIAL", 4, (0, 0, 1, 2, 3, None, None, None)),
    3: ("RADIAL", 5, (0, 0, 1, 2, 3, 4, None, None)),
    4: ("OPENCV", 8, (0, 1, 2, 3, 4, 5, 6, 7)),
}
BY_NAME = {name: number for number, (name, _, _) in MODELS.items()}
MAX_NAME = 4096  # bytes


@dataclass(frozen=True)
class _Camera:
    K: NDArray[np.float64]
    distortion: tuple[float, ...]
    size: tuple[int, int]


def find_model(capture: Path) -> Path | None:
    """The folder of a COLMAP model inside a capture, or the capture itself where it is one."""
    for folder in (*(capture / name for name in FOLDERS), capture):
        if any((folder / f"cameras{s}").is_file() and (folder / f"images{s}").is_file() for s in (".bin", ".txt")):
            return folder
    return None


def read_colmap(folder: Path) -> PoseFile:
    """Poses and intrinsics of a model's images; raises CaptureError naming the file and what is wrong with it."""
    suffix = ".bin" if (folder / "cameras.bin").is_file() and (folder / "images.bin").is_file() else ".txt"
    cameras, images = _cameras_txt, _images_txt
    if suffix == ".bin":
        cameras, images = _cameras_bin, _images_bin
    file = folder / f"cameras{suffix}"
    try:
        known = dict(cameras(file.read_bytes()))
        file = folder / f"images{suffix}"
        poses = {name: _pose(known, camera, quat, t) for name, camera, quat, t in images(file.read_bytes())}
    except WrongPose as error:
        raise CaptureError(f"{file}: {error}") from error
    except (OSError, ValueError, IndexError, KeyError, OverflowError, struct.error) as error:
        raise CaptureError(
            f"{file}: not a readable COLMAP model ({error!r}). Export it again, or remove it."
        ) from error
    if not poses:
        raise CaptureError(f"{folder}: the COLMAP model has no image with a pose. Remove it, or export another.")
    return PoseFile(folder, poses, metric=None)


def _pose(known: dict[int, _Camera], camera: int, quat: Sequence[float], t: Sequence[float]) -> KnownPose:
    if camera not in known:
        raise WrongPose(f"an image is of camera {camera}, which is not among its cameras.")
    q = np.asarray(quat, np.float64)
    if not (np.isfinite(q).all() and np.isfinite(t).all() and np.linalg.norm(q) > 0.5):
        raise WrongPose(f"a pose must be finite with a unit quaternion, received {list(quat)}, {list(t)}.")
    T = np.eye(4)
    T[:3, :3] = quat_to_matrix(q).T
    T[:3, 3] = -T[:3, :3] @ np.asarray(t, np.float64)
    c = known[camera]
    return KnownPose(T, c.K, c.distortion, c.size)


def _camera(model: int, width: int, height: int, params: Sequence[float]) -> _Camera:
    _, count, places = MODELS[model]
    if len(params) != count or not np.isfinite(params).all() or not 0 < width < 2**20 or not 0 < height < 2**20:
        raise WrongPose(f"a camera of {width}x{height} px with parameters {list(params)} is not a camera.")
    fx, fy, cx, cy, *distortion = (0.0 if p is None else float(params[p]) for p in places)
    if not (fx > 0 and fy > 0):
        raise WrongPose(f"a focal length must be positive, received {fx}, {fy}.")
    K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
    return _Camera(K, tuple(distortion) if any(distortion) else (), (width, height))


def _model(number: int) -> int:
    if number not in MODELS:
        names = ", ".join(name for name, _, _ in MODELS.values())
        raise WrongPose(f"camera model {number} is not read; undistort the images to one of {names}.")
    return number


def _cameras_bin(data: bytes) -> Iterator[tuple[int, _Camera]]:
    (count,), at = struct.unpack_from("<Q", data), 8
    for _ in range(count):
        number, model, width, height = struct.unpack_from("<iiQQ", data, at)
        params = struct.unpack_from(f"<{MODELS[_model(model)][1]}d", data, at + 24)
        at += 24 + 8 * len(params)
        yield number, _camera(model, width, height, params)


def _images_bin(data: bytes) -> Iterator[tuple[str, int, Sequence[float], Sequence[float]]]:
    (count,), at = struct.unpack_from("<Q", data), 8
    for _ in range(count):
        _, qw, qx, qy, qz, x, y, z, camera = struct.unpack_from("<i7di", data, at)
        end = data.index(b"\0", at + 64, at + 64 + MAX_NAME)
        name = data[at + 64 : end].decode()
        (points,) = struct.unpack_from("<Q", data, end + 1)
        at = end + 9 + 24 * points
        if at > len(data):
            raise ValueError(f"{name} promises {points} points, more than the file holds")
        yield name, camera, (qw, qx, qy, qz), (x, y, z)


def _cameras_txt(data: bytes) -> Iterator[tuple[int, _Camera]]:
    for line in _lines(data):
        number, model, width, height, *params = line.split()
        if model not in BY_NAME:
            raise WrongPose(f"camera model {model} is not read; undistort the images to one of {', '.join(BY_NAME)}.")
        yield int(number), _camera(BY_NAME[model], int(width), int(height), [float(p) for p in params])


def _images_txt(data: bytes) -> Iterator[tuple[str, int, Sequence[float], Sequence[float]]]:
    """Every second line lists an image's points, and may be empty."""
    lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
    for line in lines[::2]:
        if line.strip():
            words = line.split(maxsplit=9)
            yield words[9].strip(), int(words[8]), [float(w) for w in words[1:5]], [float(w) for w in words[5:8]]


def _lines(data: bytes) -> Iterator[str]:
    for line in data.decode().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line
