# SPDX-License-Identifier: Apache-2.0
"""A result compared with the truth of a known-truth capture: poses, scale, gravity, support surface."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.transforms import Similarity, umeyama

Array = NDArray[np.float64]
Surface = Callable[[Camera], tuple[NDArray, NDArray]]  # camera -> depth [H, W] m along the axis, alpha [H, W]
SUPPORT_FRAMES = 12  # frames in which the support is judged, evenly spread
SUPPORT_POINTS = 2000  # points per such frame
OPAQUE = 0.5  # alpha below which a ray goes through: nothing is there to stand on


@dataclass(frozen=True)
class Truth:
    """The truth folder of a capture. cameras: by frame name, world frame; info: truth.json."""

    folder: Path
    info: dict[str, Any]
    cameras: dict[str, Camera]

    @cached_property
    def name_of(self) -> dict[str, str]:
        """Path inside the capture (of a video: path#frame) -> frame name."""
        return {path: row["name"] for row in self.info["frames"] for path in row["capture_paths"]}

    def ids(self, name: str) -> NDArray[np.uint8]:
        return _read_image(self.folder / "ids" / f"{name}.png").astype(np.uint8)

    def depth(self, name: str) -> Array:
        """Depth [H, W] along the optical axis [m], 0 where there is nothing."""
        return _read_image(self.folder / "depth" / f"{name}.png") * float(self.info["depth_unit_m"])


def read_truth(folder: Path) -> Truth:
    """Read OUT/truth of a synthetic capture; OUT itself is accepted too."""
    folder = Path(folder)
    if not (folder / "truth.json").is_file() and (folder / "truth" / "truth.json").is_file():
        folder = folder / "truth"
    try:
        info = json.loads((folder / "truth.json").read_text())
    except (OSError, ValueError) as error:
        raise Real2SimError(f"{folder}: no readable truth.json ({error}). `real2sim synth` writes one.") from error
    return Truth(folder, info, {c.name: c for c in read_cameras(folder / "cameras.json")})


def _read_image(path: Path) -> NDArray:
    image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if image is None:
        raise Real2SimError(f"{path}: missing or not an image. Make the capture again with `real2sim synth`.")
    return image


@dataclass(frozen=True)
class PoseErrors:
    """How far posed cameras are from the true ones.

    T_true_est: the best similarity; position_error_rel: RMSE of the camera centres after Umeyama's fit, over the
    diameter of all true centres; rotation_error_deg: RMS angle between orientations after the best common rotation.
    """

    registered: int
    T_true_est: Similarity
    position_error_rel: float
    rotation_error_deg: float


def pose_errors(estimated: Sequence[Camera], true: Sequence[Camera], all_true: Sequence[Camera]) -> PoseErrors:
    """Compare matched cameras; all_true: every true camera, posed or not, whose extent is the yardstick.

    The common rotation is the chordal mean of the cameras' own rotations (Hartley et al. 2013, sec. 5.3), which the
    camera centres alone would not fix where they lie on a line; scale and translation then fit the centres.
    """
    if len(estimated) < 3:
        raise Real2SimError(f"A similarity fit needs 3 posed frames, received {len(estimated)}.")
    x, y = (np.stack([c.centre for c in cameras]) for cameras in (estimated, true))
    everyone = np.stack([c.centre for c in all_true])
    diameter = float(np.linalg.norm(everyone[:, None] - everyone[None], axis=-1).max())
    if diameter < 1e-6:
        raise Real2SimError("All true cameras stand at one place: position and scale cannot be judged.")
    fit = umeyama(x, y)
    rmse = float(np.sqrt(((fit.apply(x) - y) ** 2).sum(1).mean()))
    R = _nearest_rotation(sum(t.T_world_cam[:3, :3] @ e.T_world_cam[:3, :3].T for e, t in zip(estimated, true)))
    angles = [rotation_angle(R @ e.T_world_cam[:3, :3], t.T_world_cam[:3, :3]) for e, t in zip(estimated, true)]
    turned, centred = (x - x.mean(0)) @ R.T, y - y.mean(0)
    scale = float((turned * centred).sum() / (turned**2).sum())
    T = Similarity(scale, R, y.mean(0) - scale * R @ x.mean(0))
    return PoseErrors(len(x), T, rmse / diameter, float(np.degrees(np.sqrt(np.mean(np.square(angles))))))


def rotation_angle(a: Array, b: Array) -> float:
    """Angle [rad] between two rotations [3, 3], exact for small ones too."""
    return float(2 * np.arcsin(min(1.0, np.linalg.norm(a - b) / np.sqrt(8))))


def _nearest_rotation(matrix: Any) -> Array:
    U, _, Vt = np.linalg.svd(np.asarray(matrix, np.float64))
    return U @ np.diag([1, 1, np.sign(np.linalg.det(U @ Vt))]) @ Vt


def evaluate(
    bundle: Path,
    truth: Path,
    *,
    capture_paths: Mapping[str, str] | None = None,
    surface: Surface | None = None,
) -> dict[str, Any]:
    """Errors of a bundle against OUT/truth.

    frames, registered, position_error_rel, rotation_error_deg: as in PoseErrors; scale_error: abs(bundle metre / true
    metre - 1) [1]; gravity_error_deg: angle between the bundle's z and true up; support_error_m: of the surface that
    things rest on, see `support_plane_error`; support_splat_error_m: of what the splat shows, see `support_error`.

    capture_paths: camera name -> path of its photo inside the capture, where cameras.json has no `capture_path`;
    surface: what the bundle shows from a camera; by default its static splats, rendered.
    """
    bundle, known = Path(bundle), read_truth(truth)
    cameras = matched_cameras(bundle / "cameras.json", known, capture_paths)
    names = sorted(cameras)
    true = [known.cameras[name] for name in names]
    errors = pose_errors([cameras[name] for name in names], true, list(known.cameras.values()))
    up = errors.T_true_est.rotation @ [0.0, 0.0, 1.0]
    return {
        "frames": len(known.cameras),
        "registered": errors.registered,
        "position_error_rel": errors.position_error_rel,
        "rotation_error_deg": errors.rotation_error_deg,
        "scale_error": abs(1 / errors.T_true_est.scale - 1),
        "gravity_error_deg": float(np.degrees(2 * np.arcsin(np.linalg.norm(up - [0, 0, 1]) / 2))),
        "support_error_m": support_plane_error(cameras, known, errors.T_true_est),
        "support_splat_error_m": support_error(cameras, known, errors.T_true_est, surface or splat_surface(bundle)),
    }


def matched_cameras(path: Path, truth: Truth, capture_paths: Mapping[str, str] | None = None) -> dict[str, Camera]:
    """The cameras of a cameras.json by the name of the true frame that each photo is."""
    rows = {row["name"]: row for row in json.loads(Path(path).read_text())["cameras"]}
    matched = {}
    for camera in read_cameras(path):
        photo = (capture_paths or {}).get(camera.name) or rows[camera.name].get("capture_path")
        if photo not in truth.name_of:
            raise Real2SimError(
                f"{path}: camera {camera.name!r} was made from {photo!r}, which is no photo of {truth.folder.parent}. "
                "Give capture_paths, or compare with the truth of the capture that was used."
            )
        matched[truth.name_of[photo]] = camera
    return matched


def support_plane_error(cameras: Mapping[str, Camera], truth: Truth, T_true_est: Similarity) -> float:
    """95th percentile [m] of the distance of the true visible support from the bundle's, the plane z = 0 of its frame."""
    seen = [T_true_est.inverse().apply(visible_support(truth, name))[:, 2] for name in sorted(cameras)]
    found = np.abs(np.concatenate(seen))
    if not len(found):
        raise Real2SimError(f"{truth.folder}: no posed frame shows the support, so its error cannot be measured.")
    return float(np.percentile(found, 95))


def support_error(cameras: Mapping[str, Camera], truth: Truth, T_true_est: Similarity, surface: Surface) -> float:
    """95th percentile of abs(z) [m], in the bundle's own frame and metres, of what it shows where the support is seen.

    The true ids say which pixels show the support; the fit carries those points into the bundle's frame only to find
    the pixels of its own cameras that look at them. The depth there, unprojected, is the bundle's surface: a support
    that is bumpy, tilted or off z = 0 counts in full. A ray that meets nothing counts as the camera's height.
    """
    names = sorted(cameras)
    chosen = [names[i] for i in np.unique(np.linspace(0, len(names) - 1, SUPPORT_FRAMES).round().astype(int))]
    heights = []
    for name in chosen:
        camera = cameras[name]
        points = T_true_est.inverse().apply(visible_support(truth, name))
        depth, alpha = surface(camera)
        heights.append(_shown_heights(camera, points, depth, alpha))
    found = np.concatenate(heights)
    if not len(found):
        raise Real2SimError(f"{truth.folder}: no posed frame shows the support, so its error cannot be measured.")
    return float(np.percentile(np.abs(found), 95))


def visible_support(truth: Truth, name: str) -> Array:
    """Points [N, 3] on the true support, world frame, that a frame shows; not those within 2 pixels (at a width of
    640) of another id, where the estimated camera may look past the edge."""
    camera, ids = truth.cameras[name], truth.ids(name)
    is_support = (ids == truth.info["ids"][truth.info["support"]["name"]]).astype(np.uint8)
    margin = max(1, round(2 * camera.width / 640))
    inner = cv2.erode(is_support, np.ones((2 * margin + 1, 2 * margin + 1), np.uint8), borderValue=0)
    v, u = np.nonzero(inner)
    keep = np.unique(np.linspace(0, len(u) - 1, min(SUPPORT_POINTS, len(u))).astype(int))
    return unproject(camera, u[keep] + 0.5, v[keep] + 0.5, truth.depth(name)[v[keep], u[keep]])


def unproject(camera: Camera, u: NDArray, v: NDArray, depth: NDArray) -> Array:
    """Points [N, 3], in the camera file's frame, at pixels (u, v) and depth [m] along the axis; distortion undone."""
    if len(u) == 0:
        return np.zeros((0, 3))
    x, y = (u - camera.K[0, 2]) / camera.K[0, 0], (v - camera.K[1, 2]) / camera.K[1, 1]
    xy = _undistorted(np.stack([x, y], -1), camera.distortion)
    local = np.concatenate([xy, np.ones((len(xy), 1))], 1) * np.asarray(depth, np.float64)[:, None]
    return local @ camera.T_world_cam[:3, :3].T + camera.T_world_cam[:3, 3]


def _undistorted(xy: Array, distortion: Sequence[float]) -> Array:
    """Pinhole coordinates [N, 2] of distorted ones, for OpenCV's radial k1, k2; Newton on the radius."""
    k1, k2 = [*distortion, 0.0, 0.0][:2]
    if any(distortion[2:]):
        raise Real2SimError(f"Only radial k1, k2 are undone here, received distortion {list(distortion)}.")
    distorted = np.linalg.norm(xy, axis=1)
    r = distorted.copy()
    for _ in range(10):
        r -= (r * (1 + k1 * r**2 + k2 * r**4) - distorted) / (1 + 3 * k1 * r**2 + 5 * k2 * r**4)
    return xy * (r / np.maximum(distorted, 1e-12))[:, None]


def _shown_heights(camera: Camera, points: Array, depth: NDArray, alpha: NDArray) -> Array:
    """z of the surface at the pixels of an undistorted camera that look at points [N, 3]."""
    local = (points - camera.centre) @ camera.T_world_cam[:3, :3]
    local = local[local[:, 2] > 1e-6]
    uv = (local @ camera.K.T)[:, :2] / local[:, 2:]
    column, row = np.floor(uv).astype(int).T
    inside = (column >= 0) & (row >= 0) & (column < camera.width) & (row < camera.height)
    column, row = column[inside], row[inside]
    z = unproject(_pinhole(camera), column + 0.5, row + 0.5, depth[row, column])[:, 2]
    return np.where((alpha[row, column] >= OPAQUE) & np.isfinite(z), z, camera.centre[2])


def _pinhole(camera: Camera) -> Camera:
    return Camera(**{**camera.__dict__, "distortion": []})


def splat_surface(bundle: Path) -> Surface:
    """Depth and alpha of a bundle's static splats from any camera."""
    from real2sim.sim.render.splat import Splat
    from real2sim.sim.render.surface_depth import render_surface

    try:
        assets = json.loads((bundle / "bundle.json").read_text())["assets"]
    except (OSError, ValueError, KeyError) as error:
        raise Real2SimError(f"{bundle}: not a bundle ({error}).") from error
    splats = [Splat.load(bundle / a["splat"]) for a in assets if a.get("static") and a.get("splat")]
    if not splats:
        raise Real2SimError(f"{bundle}: no static asset has a splat, so its support cannot be judged.")

    def show(camera: Camera) -> tuple[NDArray, NDArray]:
        seen = [render_surface(splat, _pinhole(camera)) for splat in splats]
        nearest = np.argmin([np.where(s["alpha"] >= OPAQUE, s["depth"], np.inf) for s in seen], axis=0)
        return tuple(
            np.take_along_axis(np.stack([s[k] for s in seen]), nearest[None], 0)[0] for k in ("depth", "alpha")
        )

    return show
