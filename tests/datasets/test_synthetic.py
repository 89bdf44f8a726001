# SPDX-License-Identifier: Apache-2.0
"""Known-truth captures: bytes, geometry, photos, what is written down."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import trimesh
import yaml
from PIL import Image, ImageOps

from real2sim.datasets import synthetic
from real2sim.datasets.synthetic import SyntheticConfig, make_cameras, make_scene, render_truth, write_capture
from real2sim.datasets.synthetic_paths import look_at
from real2sim.datasets.synthetic_photos import expose, save_photo, srgb
from real2sim.datasets.synthetic_scene import FIRST_OBJECT, GAP, MARKER, TABLE_TOP, Scene, separation
from real2sim.datasets.synthetic_shapes import MugSize, handle_centre
from real2sim.datasets.synthetic_textures import linear
from real2sim.datasets.truth import read_truth, unproject
from real2sim.errors import UsageError
from real2sim.sim.cameras import Camera

SURFACE = 2e-4  # m: chords of 96 sides (0.05 mm at the largest radius), float32 rays, depth steps of 0.1 mm
OUTLINE = 0.5  # px: a pixel belongs to what its centre sees
MARKER_SIZE = 5e-3  # relative, what a scale from a marker has to reach
FEATURES = 500  # SIFT features that a frame at 640 x 480 must offer


def hashes(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def project(camera: Camera, points: np.ndarray) -> np.ndarray:
    """Pixels [N, 2] of points by OpenCV's own model."""
    R, t = camera.viewmat[:3, :3], camera.viewmat[:3, 3]
    distortion = np.array(camera.distortion) if camera.distortion else None
    return cv2.projectPoints(points.reshape(-1, 1, 3), cv2.Rodrigues(R)[0], t, camera.K, distortion)[0].reshape(-1, 2)


# --- bytes ---------------------------------------------------------------------------------------------------------


def test_the_same_options_give_the_same_bytes(small: SyntheticConfig, small_capture: Path, tmp_path: Path) -> None:
    write_capture(small, tmp_path / "again")
    assert hashes(tmp_path / "again") == hashes(small_capture)


def test_another_seed_gives_another_scene(small: SyntheticConfig) -> None:
    first, second = (make_scene(dataclasses.replace(small, seed=seed)) for seed in (0, 1))
    assert [e.size for e in first.objects] != [e.size for e in second.objects]


def test_one_more_object_leaves_the_others_as_they_are(small: SyntheticConfig) -> None:
    five, six = (make_scene(dataclasses.replace(small, objects=n)).objects for n in (5, 6))
    assert [(e.name, e.size) for e in six[:5]] == [(e.name, e.size) for e in five]


def test_truth_lists_the_hash_of_every_file(small_capture: Path) -> None:
    listed = read_truth(small_capture).info["files"]
    assert {k: v for k, v in hashes(small_capture).items() if k != "truth/truth.json"} == listed


def test_the_capture_holds_only_what_a_person_would_bring(small_capture: Path) -> None:
    names = {p.relative_to(small_capture / "capture").as_posix() for p in (small_capture / "capture").rglob("*")}
    assert names == {f"IMG_{k:04d}.jpg" for k in range(1, 7)} | {"capture.yaml"}
    card = yaml.safe_load((small_capture / "capture" / "capture.yaml").read_text())
    assert card == {"marker": {"dictionary": "DICT_4X4_50", "size_m": 0.08}}


def test_a_failure_leaves_nothing_behind(
    small: SyntheticConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(synthetic, "write_cameras", broken)
    with pytest.raises(OSError, match="disk full"):
        write_capture(dataclasses.replace(small, frames=1, width=32, height=24), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(small: SyntheticConfig, small_capture: Path) -> None:
    with pytest.raises(UsageError, match="exists"):
        write_capture(small, small_capture)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"frames": 0}, "frames must be 1"),
        ({"objects": 16}, "objects must be 0 to 15"),
        ({"path": "spiral"}, "path must be one of orbits"),
        ({"orientation": 2}, "orientation must be"),
        ({"media": "video", "width": 161}, "even width"),
        ({"marker_size_m": 1.0}, "marker_size_m must be"),
    ],
)
def test_a_wrong_option_is_named(small: SyntheticConfig, change: dict, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        write_capture(dataclasses.replace(small, **change), tmp_path / "out")


# --- geometry ------------------------------------------------------------------------------------------------------


def distance_to_surface(shape: str, size: dict[str, float], points: np.ndarray) -> np.ndarray:
    """Distance [N] of body-frame points from the closed-form surface of a box, can or ball."""
    if shape == "ball":
        return np.abs(np.linalg.norm(points - [0, 0, size["radius"]], axis=1) - size["radius"])
    if shape == "can":
        q = np.stack(
            [np.linalg.norm(points[:, :2], axis=1) - size["radius"], _beyond(points[:, 2], size["height"])], -1
        )
    else:
        half = [np.abs(points[:, k]) - size[axis] / 2 for k, axis in enumerate("xy")]
        q = np.stack([*half, _beyond(points[:, 2], size["z"])], -1)
    outside = np.linalg.norm(np.maximum(q, 0), axis=1)
    return np.abs(outside + np.minimum(q.max(1), 0))


def _beyond(z: np.ndarray, height: float) -> np.ndarray:
    return np.abs(z - height / 2) - height / 2


def test_depth_puts_every_pixel_on_the_true_surface(small_capture: Path) -> None:
    truth = read_truth(small_capture)
    rows = json.loads((truth.folder / "objects.json").read_text())["objects"]
    seen = set()
    for name, camera in truth.cameras.items():
        ids, depth = truth.ids(name), truth.depth(name)
        for row in rows:
            v, u = np.nonzero(ids == row["id"])
            if row["shape"] == "mug" or len(u) == 0:
                continue
            T = np.array(row["T_world_body"])
            body = (unproject(camera, u + 0.5, v + 0.5, depth[v, u]) - T[:3, 3]) @ T[:3, :3]
            assert distance_to_surface(row["shape"], row["size"], body).max() < SURFACE, (name, row["name"])
            seen.add(row["shape"])
        v, u = np.nonzero(ids == TABLE_TOP)
        assert np.abs(unproject(camera, u + 0.5, v + 0.5, depth[v, u])[:, 2]).max() < SURFACE
    assert seen == {"box", "can", "ball", "book"}


def test_true_cameras_project_the_true_meshes_onto_the_ids(small_capture: Path, small_scene: Scene) -> None:
    """Convex things: id pixels lie inside the outline of the projected vertices, and all inside it are ids unless
    something nearer covers them."""
    truth = read_truth(small_capture)
    for name, camera in truth.cameras.items():
        ids, depth = truth.ids(name), truth.depth(name)
        v, u = (grid.ravel() + 0.5 for grid in np.mgrid[: camera.height, : camera.width])
        for element in small_scene.objects:
            if element.kind == "mug":
                continue
            vertices = element.mesh[0] @ element.T_world_body[:3, :3].T + element.T_world_body[:3, 3]
            outline = cv2.convexHull(project(camera, vertices).astype(np.float32))
            inside = np.array([cv2.pointPolygonTest(outline, (float(a), float(b)), True) for a, b in zip(u, v)])
            is_id = ids.ravel() == element.id
            assert inside[is_id].min(initial=0) > -OUTLINE
            away = (vertices - camera.centre) @ camera.T_world_cam[:3, 2]
            assert np.all(depth.ravel()[(inside > OUTLINE) & ~is_id] < away.max() + SURFACE)


def test_meshes_on_disk_are_those_of_the_scene(small_capture: Path, small_scene: Scene) -> None:
    for element in small_scene.objects:
        mesh = trimesh.load_mesh(small_capture / "truth" / "meshes" / f"{element.name}.obj", process=False)
        assert isinstance(mesh, trimesh.Trimesh)
        assert mesh.is_watertight
        assert mesh.volume == pytest.approx(element.mass.volume, rel=1e-5)


def test_objects_stand_on_the_table_apart_from_each_other(small: SyntheticConfig) -> None:
    for seed in (0, 1):
        scene = make_scene(dataclasses.replace(small, objects=15, width=40, seed=seed))
        outlines = []
        for e in (*scene.objects, scene.element("marker")):
            outlines.append(e.footprint @ e.T_world_body[:2, :2].T + e.T_world_body[:2, 3])
            assert np.all(np.abs(outlines[-1]) < [0.6, 0.4])
        for e in scene.objects:
            assert e.mesh[0][:, 2].min() == pytest.approx(0, abs=1e-12) and e.T_world_body[2, 3] == 0
        for k, a in enumerate(outlines):
            assert all(separation(a, b) >= GAP for b in outlines[:k])
        assert [e.id for e in scene.objects] == list(range(FIRST_OBJECT, FIRST_OBJECT + 15))


def test_separation_is_a_gap_or_an_overlap() -> None:
    square, beside, across = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]]), np.array([1.25, 0]), np.array([0.75, 0.1])
    assert separation(square, square + beside) == pytest.approx(0.25)
    assert separation(square, square + across) == pytest.approx(-0.25)


def test_a_ray_through_the_mugs_handle_sees_what_is_behind(small_scene: Scene) -> None:
    mug = small_scene.element("mug_2")
    size, T = MugSize(**mug.size), mug.T_world_body
    hole = T[:3, :3] @ handle_centre(size) + T[:3, 3]
    K = np.array([[400.0, 0, 50.5], [0, 400, 50.5], [0, 0, 1]])
    beside = Camera("hole", 101, 101, K, look_at(hole - 0.3 * T[:3, 1] + 0.1 * T[:3, 2], hole))
    ids = small_scene.without("box_0", "can_1", "ball_3", "book_4").caster.geometry(beside)[1]
    assert ids[50, 50] == TABLE_TOP
    assert (ids == mug.id).mean() > 0.2 and ids[50, 75] == mug.id, "the mug surrounds the hole"


def test_an_object_can_be_taken_away_or_moved(small: SyntheticConfig, small_scene: Scene) -> None:
    camera = make_cameras(small)[0]
    box = small_scene.element("box_0")
    pose = box.T_world_body.copy()
    pose[:2, 3] += [0.0, 0.05]
    before, gone, moved = (
        render_truth(scene, camera, 1)
        for scene in (small_scene, small_scene.without("box_0"), small_scene.moved("box_0", pose))
    )
    assert (before.ids == box.id).any() and not (gone.ids == box.id).any()
    assert (moved.ids == box.id).any() and (moved.ids != before.ids).any()
    stays = (before.ids == gone.ids) & (before.ids == 1)
    np.testing.assert_array_equal(before.depth[stays], gone.depth[stays])
    with pytest.raises(UsageError, match="no element 'boxx'"):
        small_scene.without("boxx")


def test_an_empty_table_is_a_scene_too(small: SyntheticConfig, tmp_path: Path) -> None:
    truth = write_capture(dataclasses.replace(small, objects=0, frames=1, width=16, height=16), tmp_path / "out")
    assert set(truth["ids"]) == {"room", "table", "table_top", "marker"}
    assert json.loads((tmp_path / "out" / "truth" / "objects.json").read_text()) == {"objects": []}


def test_masses_on_disk_are_volume_times_density(small_capture: Path) -> None:
    for row in json.loads((small_capture / "truth" / "objects.json").read_text())["objects"]:
        assert row["mass"] == pytest.approx(row["volume"] * row["density"])
        assert np.all(np.linalg.eigvalsh(row["inertia"]) > 0)


# --- pictures ------------------------------------------------------------------------------------------------------


def test_the_marker_triangulates_to_its_stated_size(small_scene: Scene) -> None:
    """Edges are fitted in linear light: sRGB moves a blurred edge towards the dark side."""
    cameras = make_cameras(SyntheticConfig())[28:40:2]
    parameters = cv2.aruco.DetectorParameters()
    parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_APRILTAG
    detector = cv2.aruco.ArucoDetector(cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_4X4_50), parameters)
    views = []
    for camera in cameras:
        photo = expose(small_scene.caster.photo(camera), 1.0, 1.0, np.random.default_rng(0))
        light = (255 * np.clip(linear(photo / 255.0), 0, 1)).astype(np.uint8)
        corners, numbers, _ = detector.detectMarkers(cv2.cvtColor(light, cv2.COLOR_RGB2GRAY))
        if numbers is not None:
            assert numbers.ravel().tolist() == [7]
            views.append((camera, corners[0].reshape(4, 2)))  # this refinement counts from the corner of a pixel
    assert len(views) >= 4
    found = np.stack([triangulate([(c, x[k]) for c, x in views]) for k in range(4)])
    sides = np.linalg.norm(found - np.roll(found, 1, 0), axis=1)
    assert sides.mean() == pytest.approx(0.08, rel=MARKER_SIZE)
    assert np.abs(found - small_scene.marker_corners).max() < 5e-4


def test_the_marker_is_drawn_at_its_stated_size(small_scene: Scene) -> None:
    """Seen from right above at 0.1 mm a pixel, the row through two black cells of its rim crosses half-way between
    black and white at both edges."""
    T = small_scene.element("marker").T_world_body
    eye = T[:3, 3] + [0, 0, 0.5]
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = T[:3, :3] @ np.diag([1.0, -1, -1]), eye
    above = Camera("above", 1000, 3, np.array([[5000.0, 0, 500], [0, 5000, 1.5 + 333], [0, 0, 1]]), pose)
    row = small_scene.caster.photo(above, side=1)[1].mean(-1)
    step = (row > (row.max() + row.min()) / 2).astype(int)
    first, last = np.nonzero(np.diff(step))[0][[0, -1]]
    assert (last - first) * 1e-4 == pytest.approx(0.08, abs=1.5e-4)


def triangulate(views: list[tuple[Camera, np.ndarray]]) -> np.ndarray:
    """The point nearest to the rays through pixels."""
    A, b = np.zeros((3, 3)), np.zeros(3)
    for camera, (u, v) in views:
        ray = unproject(camera, np.array([u]), np.array([v]), np.ones(1))[0] - camera.centre
        P = np.eye(3) - np.outer(ray, ray) / (ray @ ray)
        A, b = A + P, b + P @ camera.centre
    return np.linalg.solve(A, b)


def test_frames_offer_features_and_use_the_range_of_the_sensor(full_scene: Scene) -> None:
    for camera in make_cameras(SyntheticConfig())[3::13]:
        photo = expose(full_scene.caster.photo(camera), 1.0, 1.0, np.random.default_rng(0))
        grey = cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)
        assert len(cv2.SIFT.create().detect(grey, None)) > FEATURES
        assert 70 < grey.mean() < 180 and (photo == 255).all(-1).mean() < 0.05


def test_detail_is_wider_than_a_pixel(full_scene: Scene) -> None:
    """A picture through a pinhole of one sample a pixel differs little from one of 25: nothing aliases."""
    whole = make_cameras(SyntheticConfig())[30]
    shift = np.array([[1.0, 0, -220], [0, 1, -300], [0, 0, 1]])
    camera = dataclasses.replace(whole, width=200, height=150, K=shift @ whole.K)
    one, many = (srgb(full_scene.caster.photo(camera, side=side)) for side in (1, 5))
    table = full_scene.caster.geometry(camera)[1] == TABLE_TOP
    inner = cv2.erode(table.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    assert inner.mean() > 0.3
    assert np.sqrt(((one - many)[inner] ** 2).mean()) < 2.5 / 255


def test_everything_has_texture(full_scene: Scene) -> None:
    for element in full_scene.elements:
        for part in element.parts:
            if element.id != MARKER and part.emission == 0:
                assert part.albedo.std(axis=(0, 1)).max() > 0.002, element.name


def test_noise_has_the_stated_size() -> None:
    grey = np.full((200, 200, 3), 0.18, np.float32)
    clean, noisy = (expose(grey, 1.0, n, np.random.default_rng(0)).astype(float) for n in (0.0, 1.0))
    slope = 255 * 1.055 / 2.4 * 0.18 ** (1 / 2.4 - 1)
    expected = np.hypot(slope * np.sqrt(0.0012**2 + 0.00012 * 0.18), 12**-0.5)
    assert clean.std() == 0
    assert noisy.std() == pytest.approx(expected, rel=0.03)


def test_shake_smears_by_the_stated_length() -> None:
    camera = make_cameras(SyntheticConfig(frames=1))[0]
    lengths = []
    for seed in range(200):
        poses = synthetic.shaken_poses(camera, 10.0, 9, np.random.default_rng(seed))
        ahead = camera.centre + camera.T_world_cam[:3, 2]
        pixels = np.concatenate([project(dataclasses.replace(camera, T_world_cam=p), ahead) for p in poses])
        lengths.append(np.linalg.norm(pixels - pixels[:, None], axis=-1).max() * 9 / 8)
    assert np.mean(lengths) == pytest.approx(10.0, rel=0.1)


def test_photos_carry_the_lens_in_their_exif(small: SyntheticConfig, small_capture: Path) -> None:
    with Image.open(small_capture / "capture" / "IMG_0003.jpg") as photo:
        exif = photo.getexif()
        details = exif.get_ifd(0x8769)
    assert exif[0x010F] and exif[0x0110] and exif[0x0112] == 1
    diagonal = np.hypot(small.width, small.height)
    true = small.focal * small.width
    assert details[0xA405] * diagonal / 43.267 == pytest.approx(true, rel=0.02)  # it is a whole number of mm
    assert float(details[0x920A]) / 5.6 * small.width == pytest.approx(true, rel=1e-3)
    assert (details[0xA002], details[0xA003]) == (small.width, small.height)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_turned_photos_are_upright_once_their_tag_is_applied(orientation: int, tmp_path: Path) -> None:
    pixels = np.zeros((96, 128, 3), np.uint8)
    pixels[:48, :64] = 200, 120, 40
    save_photo(tmp_path / "a.jpg", pixels, 140.0, 0, orientation)
    with Image.open(tmp_path / "a.jpg") as photo:
        assert photo.size == ((128, 96) if orientation in (1, 3) else (96, 128))
        assert photo.getexif()[0x0112] == orientation
        upright = np.asarray(ImageOps.exif_transpose(photo), float)
    assert np.abs(upright - pixels).mean() < 1  # JPEG of quality 95


def test_video_and_depth_show_the_frames(small: SyntheticConfig, small_capture: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(small, media="video", depth=True)
    write_capture(config, tmp_path / "film")
    capture = tmp_path / "film" / "capture"
    assert not list(capture.glob("*.jpg"))
    video = cv2.VideoCapture(str(capture / "video.mp4"))
    for k in range(small.frames):
        ok, frame = video.read()
        photo = cv2.imread(str(small_capture / "capture" / f"IMG_{k + 1:04d}.jpg"))
        assert ok and np.abs(frame.astype(float) - photo).mean() < 5
    assert not video.read()[0]
    millimetres = cv2.imread(str(capture / "depth" / "IMG_0001.png"), cv2.IMREAD_UNCHANGED)
    assert millimetres is not None
    np.testing.assert_allclose(
        millimetres.astype(float) * 1e-3, read_truth(tmp_path / "film").depth("IMG_0001"), atol=5.6e-4
    )
    assert read_truth(tmp_path / "film").name_of["video.mp4#2"] == "IMG_0003"


@pytest.mark.parametrize("path", ["orbits", "arc", "walk", "rotation", "flyby"])
def test_paths_look_at_the_table_from_inside_the_room(path: str) -> None:
    cameras = make_cameras(SyntheticConfig(path=path, frames=24))  # type: ignore[arg-type]
    centres = np.stack([c.centre for c in cameras])
    assert np.all(np.abs(centres[:, :2]) < 1.6) and np.all((centres[:, 2] > 0.15) & (centres[:, 2] < 1.2))
    spread = np.linalg.norm(centres - centres[0], axis=1).max()
    assert spread < 1e-12 if path == "rotation" else spread > 0.8
    for camera in cameras:
        np.testing.assert_allclose(camera.T_world_cam[:3, :3] @ camera.T_world_cam[:3, :3].T, np.eye(3), atol=1e-12)
        assert camera.T_world_cam[2, 2] < 0, "the camera looks down"
        assert camera.T_world_cam[2, 1] < 0, "its picture is upright: rows run downwards"
