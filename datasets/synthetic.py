# SPDX-License-Identifier: Apache-2.0
"""Known-truth captures: photos of a ray-cast tabletop, with everything about it written down.

    OUT/capture/          what a person would bring: photos, capture.yaml (and, if asked for, video and depth)
    OUT/truth/            never read by the pipeline; `datasets/truth.py` compares a result with it
      truth.json          options, gravity, scale, support, marker, ids, frames, sha256 of every file
      cameras.json        T_world_cam, K, distortion (sim/cameras.py); world: metres, z up, table top at z = 0
      objects.json        shape, size, pose, mass, centre of mass, inertia of each object
      ids/, depth/        per frame, 8-bit ids and 16-bit depth along the optical axis in units of 0.1 mm
      meshes/<name>.obj   body frame (world frame for what is fixed)

The same options give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image as Pictures

from real2sim.datasets import synthetic_photos as photos
from real2sim.datasets.synthetic_objects import Element
from real2sim.datasets.synthetic_paths import PathName, camera_poses
from real2sim.datasets.synthetic_scene import DICTIONARY, Scene, build_scene, support_polygon
from real2sim.errors import UsageError
from real2sim.sim.cameras import Camera, write_cameras
from real2sim.sim.transforms import matrix_to_quat
from real2sim.stages.contract import Progress

SCHEMA = 1
DEPTH_UNIT = 1e-4  # m, of the truth's depth images: 6.5 m fit into 16 bits
VIDEO = "video.mp4"
TEXEL = 0.0007  # m, on objects, for photos 640 pixels wide
FINEST, COARSEST = 0.5, 4.0  # times TEXEL, for larger and smaller photos


@dataclass(frozen=True)
class SyntheticConfig:
    """What to make. Every option and `seed` decide the bytes of the result."""

    seed: int = 0
    frames: int = 40
    width: int = 640  # pixels
    height: int = 480  # pixels
    path: PathName = "orbits"
    objects: int = 5  # 0 to 15
    marker_size_m: float = 0.08  # side of the ArUco marker's black square
    focal: float = 1.1  # focal length / width of the photo
    distortion: tuple[float, ...] = (-0.05,)  # k1, k2 of OpenCV's radial model
    noise: float = 1.0  # sensor noise, 1 = a good phone, 0 = none
    exposure_drift: float = 0.03  # largest relative change of exposure
    vignetting: float = 0.0  # light lost in the corners, 0 to 1
    motion_blur_px: float = 0.0  # mean length of the smear of camera shake
    supersample: int = 3  # samples per pixel and axis
    orientation: int = 1  # EXIF orientation that the photos are stored with: 1, 3, 6 or 8
    media: Literal["photos", "video", "both"] = "photos"
    fps: int = 30  # of the video
    depth: bool = False  # write depth/*.png (16-bit millimetres) into the capture


def check_config(config: SyntheticConfig) -> None:
    """Raise UsageError for what cannot be drawn."""
    rules = [
        ("frames", 1 <= config.frames <= 10000, "1 to 10000"),
        ("width", 16 <= config.width <= 8192, "16 to 8192"),
        ("height", 16 <= config.height <= 8192, "16 to 8192"),
        ("path", config.path in get_args(PathName), f"one of {', '.join(get_args(PathName))}"),
        ("orientation", config.orientation in photos.ORIENTATIONS, "1, 3, 6 or 8"),
        ("media", config.media in ("photos", "video", "both"), "photos, video or both"),
        ("supersample", 1 <= config.supersample <= 8, "1 to 8"),
        ("distortion", len(config.distortion) <= 2, "at most k1, k2"),
        ("focal", 0.3 <= config.focal <= 5, "0.3 to 5 times the width"),
        ("vignetting", 0 <= config.vignetting < 1, "0 up to 1"),
        ("exposure_drift", 0 <= config.exposure_drift < 1, "0 up to 1"),
        ("noise", config.noise >= 0, "0 or more"),
        ("motion_blur_px", config.motion_blur_px >= 0, "0 or more"),
    ]
    for name, holds, rule in rules:
        if not holds:
            raise UsageError(f"{name} must be {rule}, received {getattr(config, name)!r}.")
    if config.media != "photos" and (config.width % 2 or config.height % 2):
        raise UsageError(f"A video needs even width and height, received {config.width} x {config.height}.")


def make_scene(config: SyntheticConfig) -> Scene:
    """The scene that a capture with these options shows."""
    texel = TEXEL * float(np.clip(640 / config.width, FINEST, COARSEST))
    return build_scene(config.seed, config.objects, config.marker_size_m, texel)


def make_cameras(config: SyntheticConfig) -> list[Camera]:
    """The true cameras, world frame, of upright frames IMG_0001, IMG_0002 and so on."""
    f = config.focal * config.width
    K = np.array([[f, 0, config.width / 2], [0, f, config.height / 2], [0, 0, 1]])
    poses = camera_poses(config.path, config.frames, np.random.default_rng([config.seed, 1]))
    k = [float(v) for v in config.distortion]
    distortion = [*k, *[0.0] * (4 - len(k))] if any(k) else []
    return [
        Camera(f"IMG_{n + 1:04d}", config.width, config.height, K.copy(), pose, list(distortion))
        for n, pose in enumerate(poses)
    ]


@dataclass(frozen=True)
class TrueView:
    """What a camera sees. rgb [H, W, 3] float32 sRGB in 0..1 without noise; depth [H, W] float32 along the optical axis
    [m]; ids [H, W] uint8 (0: nothing)."""

    rgb: NDArray[np.float32]
    depth: NDArray[np.float32]
    ids: NDArray[np.uint8]


def render_truth(scene: Scene, camera: Camera, supersample: int = 3) -> TrueView:
    """The true picture of a scene from any camera (exposure 1), such as a new view or one with an object moved:
    `render_truth(scene.moved("mug_2", pose), camera)`."""
    depth, ids = scene.caster.geometry(camera)
    return TrueView(photos.srgb(scene.caster.photo(camera, side=supersample)), depth, ids)


def write_capture(
    config: SyntheticConfig, out: Path, progress: Progress | None = None, scene: Scene | None = None
) -> dict[str, Any]:
    """Make OUT/capture and OUT/truth; OUT appears whole by one rename. Returns truth.json's content.

    scene: what is photographed, by default the scene of the options.
    Raises UsageError where an option is wrong or OUT exists and is not empty.
    """
    check_config(config)
    out, progress = Path(out), progress or Progress()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists. A capture is written into a new folder: choose another, or delete it first.")
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        truth = _write(config, scene or make_scene(config), draft, progress)
        draft.chmod(0o755)
        os.replace(draft, out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return truth


def _write(config: SyntheticConfig, scene: Scene, draft: Path, progress: Progress) -> dict[str, Any]:
    capture, truth = draft / "capture", draft / "truth"
    for folder in (capture, truth / "ids", truth / "depth", truth / "meshes"):
        folder.mkdir(parents=True)
    if config.depth:
        (capture / "depth").mkdir()
    progress.log(f"Drawing scene {config.seed} with {len(scene.objects)} objects")
    cameras = make_cameras(config)
    frames = _write_frames(config, scene, cameras, draft, progress)
    _write_card(config, capture)
    for camera in cameras:
        camera.depth = f"depth/{camera.name}.png"
        if config.media != "video":
            camera.image = f"../capture/{camera.name}.jpg"
    write_cameras(truth / "cameras.json", cameras, "world")
    for element in scene.elements:
        _write_obj(truth / "meshes" / f"{element.name}.obj", *element.mesh)
    (truth / "objects.json").write_text(json.dumps({"objects": [describe(e) for e in scene.objects]}, indent=1))
    return _write_truth(config, scene, frames, draft)


def _write_frames(
    config: SyntheticConfig, scene: Scene, cameras: list[Camera], draft: Path, progress: Progress
) -> list[dict[str, Any]]:
    """Photos, video, ids and depth of every camera. Frames are drawn in parallel and handed over in order."""
    exposures = photos.exposure_curve(config.frames, config.exposure_drift, np.random.default_rng([config.seed, 2]))
    shade = photos.shading(config.width, config.height, config.vignetting)

    def draw(number: int) -> NDArray[np.uint8]:
        camera, rng = cameras[number], np.random.default_rng([config.seed, 3, number])
        poses = shaken_poses(camera, config.motion_blur_px, config.supersample**2, rng)
        light = scene.caster.photo(camera, poses, config.supersample)
        pixels = photos.expose(light * shade, exposures[number], config.noise, rng)
        depth, ids = scene.caster.geometry(camera)
        name, truth = f"{camera.name}.png", draft / "truth"
        Pictures.fromarray(ids).save(truth / "ids" / name)
        _save_depth(truth / "depth" / name, depth, DEPTH_UNIT)
        if config.depth:
            _save_depth(draft / "capture" / "depth" / name, depth, 0.001)
        if config.media != "video":
            path = draft / "capture" / f"{camera.name}.jpg"
            photos.save_photo(path, pixels, camera.K[0, 0], number, config.orientation)
        return pixels

    def drawn() -> Iterator[NDArray[np.uint8]]:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for number, pixels in enumerate(pool.map(draw, range(config.frames))):
                progress.update(number + 1, config.frames)
                yield pixels

    _ = scene.caster  # made once, before the threads share it
    if config.media == "photos":
        for _ in drawn():
            pass
    else:
        photos.save_video(draft / "capture" / VIDEO, drawn(), config.width, config.height, config.fps)
    return [_frame_row(config, camera.name, n, exposures[n]) for n, camera in enumerate(cameras)]


def _frame_row(config: SyntheticConfig, name: str, number: int, exposure: float) -> dict[str, Any]:
    sources = {"photos": [f"{name}.jpg"], "video": [f"{VIDEO}#{number}"], "both": [f"{name}.jpg", f"{VIDEO}#{number}"]}
    row = {"name": name, "capture_paths": sources[config.media], "exposure": float(exposure)}
    return row | {"ids": f"ids/{name}.png", "depth": f"depth/{name}.png"}


def shaken_poses(camera: Camera, blur_px: float, count: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """`count` poses [4, 4] during an exposure in which the image moves by about blur_px: the camera turns about an axis
    in its image plane. They are in an order that does not follow the samples' places in a pixel."""
    length = blur_px * rng.uniform(0.3, 1.7) / camera.K[0, 0]
    direction = rng.uniform(0, 2 * np.pi)
    axis = np.array([np.cos(direction), np.sin(direction), 0.0])
    poses = []
    for t in rng.permutation(count):
        w = axis * length * ((t + 0.5) / count - 0.5)
        skew = np.array([[0, -w[2], w[1]], [w[2], 0, -w[0]], [-w[1], w[0], 0]])
        turned = camera.T_world_cam.copy()
        turned[:3, :3] = turned[:3, :3] @ (np.eye(3) + skew + skew @ skew / 2)
        poses.append(turned)
    return poses


def _save_depth(path: Path, depth: NDArray[np.float32], unit: float) -> None:
    values = np.where(depth > 0, np.clip(np.round(depth / unit), 0, 65535), 0).astype(np.uint16)
    Pictures.fromarray(values).save(path, compress_level=3)


def _write_card(config: SyntheticConfig, capture: Path) -> None:
    """capture.yaml: what a person would know of the place."""
    card: dict[str, Any] = {"marker": {"dictionary": DICTIONARY, "size_m": config.marker_size_m}}
    (capture / "capture.yaml").write_text(yaml.safe_dump(card, sort_keys=False))


def _write_obj(path: Path, vertices: NDArray[np.float64], faces: NDArray[np.int64]) -> None:
    lines = [f"v {x:.9g} {y:.9g} {z:.9g}" for x, y, z in vertices]
    lines += [f"f {a} {b} {c}" for a, b, c in faces + 1]
    path.write_text("\n".join(lines) + "\n")


def describe(element: Element) -> dict[str, Any]:
    """An object's row in objects.json. com and inertia (about com) are in the body frame, SI units."""
    mass, T = element.mass, element.T_world_body
    return {
        "name": element.name,
        "id": element.id,
        "shape": element.kind,
        "size": element.size,
        "mesh": f"meshes/{element.name}.obj",
        "T_world_body": T.tolist(),
        "position": T[:3, 3].tolist(),
        "quat": matrix_to_quat(T[:3, :3]).tolist(),
        "density": element.density,
        "volume": mass.volume,
        "mass": mass.mass,
        "com": mass.com.tolist(),
        "inertia": mass.inertia.tolist(),
        "gloss": max(part.gloss for part in element.parts),
    }


def _write_truth(config: SyntheticConfig, scene: Scene, frames: list[dict[str, Any]], draft: Path) -> dict[str, Any]:
    marker = scene.element("marker")
    truth: dict[str, Any] = {
        "schema": SCHEMA,
        "options": asdict(config),
        "world": "metres, z up, origin at the centre of the table's top",
        "gravity": [0.0, 0.0, -9.81],
        "metres_per_unit": 1.0,
        "depth_unit_m": DEPTH_UNIT,
        "support": {"name": "table_top", "height": 0.0, "polygon": support_polygon().tolist()},
        "marker": {
            "dictionary": DICTIONARY,
            "size_m": config.marker_size_m,
            "T_world_marker": marker.T_world_body.tolist(),
            "corners": scene.marker_corners.tolist(),
        },
        "ids": {e.name: e.id for e in scene.elements},
        "frames": frames,
    }
    files = sorted(p for p in draft.rglob("*") if p.is_file())
    sums = {p.relative_to(draft).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    truth["files"] = sums
    truth["digest"] = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
    (draft / "truth" / "truth.json").write_text(json.dumps(truth, indent=1))
    return truth
