# SPDX-License-Identifier: Apache-2.0
"""Depth views, fusion, carving and the mesh stage, against analytic surfaces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import trimesh
from analytic_scene import (
    Box,
    Scene,
    moved_views,
    orbit,
    random_similarity,
    sparse_cloud,
    table_mesh,
    truth_splat,
    truth_views,
    write_sfm,
)

from real2sim.errors import BackendError, CaptureError
from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import Similarity
from real2sim.stages import mesh
from real2sim.stages.contract import Progress
from real2sim.stages.depth_views import DepthView, clean_depth, keep_consistent
from real2sim.stages.preview import z_buffer
from real2sim.stages.solid import Solid, carve
from real2sim.stages.tsdf import dense, extract_surface, fuse
from real2sim.stages.tsdf_open3d import fuse_open3d

SURFACE_M = 0.004  # half a voxel of 8 mm: fusion is exact to a fraction of it, marching cubes chamfers edges
OUTLINE = np.array([[-0.6, -0.4], [0.6, -0.4], [0.6, 0.4], [-0.6, 0.4]])


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, trimesh.Trimesh]:
    folder = tmp_path_factory.getbasetemp() / "table_mesh"
    table_mesh(str(folder))
    return folder, trimesh.load(folder / "background.ply", process=False)


def _near(vertices: np.ndarray, low: list[float], high: list[float]) -> np.ndarray:
    return vertices[((vertices > low) & (vertices < high)).all(1)]


def test_fused_surfaces_lie_on_the_true_ones(built) -> None:
    vertices = np.asarray(built[1].vertices)
    table = _near(vertices, [-0.5, -0.35, -0.02], [-0.4, 0.35, 0.02])
    assert len(table) > 100 and np.percentile(np.abs(table[:, 2]), 95) < SURFACE_M
    ball = _near(vertices, [0.03, 0.13, 0.03], [0.17, 0.27, 0.13])
    assert len(ball) > 50
    assert np.percentile(np.abs(np.linalg.norm(ball - [0.1, 0.2, 0.06], axis=1) - 0.06), 90) < SURFACE_M
    floor = _near(vertices, [-2.4, -2.4, -0.9], [-0.8, 2.4, -0.6])
    assert len(floor) > 100 and np.percentile(np.abs(floor[:, 2] + 0.75), 90) < 0.02


def test_faces_turn_towards_the_free_side(built) -> None:
    surface = built[1]
    centre, normal = surface.triangles_center, surface.face_normals
    top = (np.abs(centre[:, 2]) < 0.004) & (np.abs(centre[:, 0]) < 0.5) & (np.abs(centre[:, 1]) < 0.3)
    assert (normal[top, 2] > 0.5).mean() > 0.95


def test_vertices_carry_the_colours_of_the_views(built) -> None:
    surface = built[1]
    rgb = np.asarray(surface.visual.vertex_colors)[:, :3]
    vertices = np.asarray(surface.vertices)
    table = (np.abs(vertices[:, 2]) < 0.004) & (np.abs(vertices[:, :2]) < [0.5, 0.3]).all(1)
    assert abs(float(np.median(rgb[table])) - 0.3 * 255) < 3  # the table is shape 1: 0.2 + 0.1


def test_things_are_carved_closed_to_their_hidden_base(built) -> None:
    solid = Solid.load(built[0] / "solid.npz")

    def at(x: float, y: float, z: float) -> float:
        i, j, k = np.floor((np.array([x, y, z]) - solid.low) / solid.voxel).astype(int)
        return float(solid.field[i, j, k])

    assert at(-0.25, -0.05, 0.06) < 0 and at(-0.25, -0.05, 0.002) < 0  # inside the box, and its base that nobody saw
    assert at(-0.25, -0.05, 0.14) > 0 and at(0.4, 0.2, 0.03) > 0  # above it, and over the free table
    volume = float((solid.field < 0).sum()) * solid.voxel**3
    true = 0.2 * 0.2 * 0.12 + 4 / 3 * np.pi * 0.06**3 + np.pi * 0.04**2 * 0.15
    assert volume == pytest.approx(true, rel=0.1)


def test_a_handle_stays_open() -> None:
    """A ring of four bars standing on the table: the views through it carve its hole."""
    bars = [
        Box((-0.06, -0.01, 0.0), (0.06, 0.01, 0.02)), Box((-0.06, -0.01, 0.1), (0.06, 0.01, 0.12)),
        Box((-0.06, -0.01, 0.0), (-0.04, 0.01, 0.12)), Box((0.04, -0.01, 0.0), (0.06, 0.01, 0.12)),
    ]  # fmt: skip
    floor = Box((-2, -2, 0.0), (2, 2, 2.0))
    views = truth_views(Scene([floor, *bars]), orbit(12, 240, 180, radius=0.6))
    solid = carve(views, np.array([-0.1, -0.1, 0.0]), np.array([0.1, 0.1, 0.15]), 0.004)
    hole = np.floor((np.array([0.0, 0.0, 0.06]) - solid.low) / solid.voxel).astype(int)
    bar = np.floor((np.array([0.05, 0.0, 0.06]) - solid.low) / solid.voxel).astype(int)
    assert solid.field[tuple(hole)] > 0.3 and solid.field[tuple(bar)] < 0


def test_a_solid_survives_its_file(tmp_path) -> None:
    solid = Solid(np.array([1.0, 2, 3]), 0.01, np.random.default_rng(0).uniform(-1, 1, (4, 5, 6)).astype(np.float32))
    solid.save(tmp_path / "solid.npz")
    again = Solid.load(tmp_path / "solid.npz")
    assert np.abs(again.field - solid.field).max() < 0.005 and again.voxel == 0.01


def test_edges_and_grazing_depth_are_not_trusted() -> None:
    camera = orbit(1, 160, 120)[0]
    depth, shape = Scene().depth(camera)
    clean = clean_depth(camera, depth.astype(np.float32), np.ones_like(depth, np.float32))
    silhouette = np.zeros_like(shape, bool)
    silhouette[:, 1:] = np.abs(np.diff(depth, axis=1)) > 0.1
    assert np.isnan(clean[silhouette]).all()
    assert np.isfinite(clean).mean() > 0.8
    assert np.isnan(clean_depth(camera, depth.astype(np.float32), np.full_like(depth, 0.5, np.float32))).all()


def test_a_floater_of_one_view_is_contradicted_by_the_others() -> None:
    views = truth_views(Scene(), orbit(8, 96, 72))
    depth = views[3].depth.copy()
    depth[30:36, 40:46] *= 0.6
    spoiled = [*views[:3], DepthView(views[3].camera, depth, views[3].rgb), *views[4:]]
    kept = keep_consistent(spoiled)[3].depth
    assert np.isnan(kept[30:36, 40:46]).mean() > 0.9
    assert np.isfinite(kept).sum() > 0.9 * np.isfinite(views[3].depth).sum() - 36


def test_fusion_is_exact_on_a_plane_seen_from_above() -> None:
    camera = Camera("c", 64, 64, np.array([[60.0, 0, 32], [0, 60.0, 32], [0, 0, 1]]), np.diag([1.0, -1, -1, 1]))
    camera.T_world_cam[2, 3] = 1.0
    view = DepthView(camera, np.full((64, 64), 0.997, np.float32), np.zeros((64, 64, 3), np.float32))
    volume = fuse([view], np.array([-0.3, -0.3, -0.1]), np.array([0.3, 0.3, 0.1]), 0.01)
    vertices, faces = extract_surface(*dense(volume, 1), volume.low, volume.voxel)
    assert len(faces) > 1000 and np.abs(vertices[:, 2] - 0.003).max() < 1e-5


def test_an_empty_box_gives_an_empty_surface() -> None:
    camera = orbit(1, 32, 24)[0]
    view = DepthView(camera, np.full((24, 32), np.nan, np.float32), np.zeros((24, 32, 3), np.float32))
    volume = fuse([view], np.zeros(3), np.ones(3), 0.1)
    assert len(extract_surface(*dense(volume, 1), volume.low, volume.voxel)[1]) == 0


def test_dust_is_dropped_and_the_coarse_mesh_is_cut_out_of_the_fine_region() -> None:
    big = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0.0]])
    small = big * 0.01 + 5
    vertices, faces = mesh.drop_dust(np.r_[big, small], np.array([[0, 1, 2], [3, 4, 5]]), 0.01)
    assert len(faces) == 1 and np.allclose(vertices, big)
    near = mesh.Region(np.full(3, -2.0), np.full(3, 2.0), 0.1)
    far = mesh.Region(np.full(3, -9.0), np.full(3, 9.0), 0.2)
    coarse = (np.r_[big, big + 4], np.array([[0, 1, 2], [3, 4, 5]]))
    vertices, faces = mesh.join((big, np.array([[0, 1, 2]])), coarse, near, far)
    assert len(faces) == 2 and vertices[faces[1]].min() >= 4


def test_memory_is_bounded_by_a_larger_voxel() -> None:
    points = np.random.default_rng(0).uniform([-5, -5, 0], [5, 5, 3], (5000, 3))
    near, far = mesh.choose_regions(points, OUTLINE * 5, mesh.Config(voxel_m=0.001))
    for region in (near, far):
        assert np.prod((region.high - region.low) / region.voxel) <= 1.01 * mesh.MAX_CELLS


def test_open3d_finds_the_same_table() -> None:
    pytest.importorskip("open3d")
    low, high = np.array([-0.5, -0.35, -0.1]), np.array([0.5, 0.35, 0.4])
    vertices, faces = fuse_open3d(truth_views(Scene(), orbit(12, 192, 144)), low, high, 0.008, 2)
    assert len(faces) > 1000 and ((vertices[faces] >= low) & (vertices[faces] <= high)).all()
    table = _near(vertices[np.unique(faces)], [-0.5, -0.35, -0.02], [-0.4, 0.35, 0.02])
    assert len(table) > 100 and np.percentile(np.abs(table[:, 2]), 95) < SURFACE_M


def test_open3d_by_name_without_open3d_says_how_to_get_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(BackendError, match="pip install"):
        mesh.build(truth_views(Scene(), orbit(4, 96, 72)), OUTLINE, mesh.Config(backend="open3d"), tmp_path, Progress())


def test_a_splat_that_shows_nothing_is_a_capture_error(tmp_path) -> None:
    camera = orbit(1, 32, 24)[0]
    view = DepthView(camera, np.full((24, 32), np.nan, np.float32), np.zeros((24, 32, 3), np.float32))
    with pytest.raises(CaptureError, match="train it longer"):
        mesh.build([view], OUTLINE, mesh.Config(), tmp_path, Progress())


def test_z_buffer_agrees_with_the_analytic_box_even_behind_the_near_plane() -> None:
    camera = orbit(1, 160, 120)[0]
    shapes = [Box((-0.35, -0.15, 0.0), (-0.15, 0.05, 0.12)), Box((-9, -9, -0.1), (9, 9, 0.0))]
    box = trimesh.util.concatenate([trimesh.creation.box(bounds=[s.low, s.high]) for s in shapes])
    depth, face = z_buffer(np.asarray(box.vertices, float), np.asarray(box.faces, np.int64), camera)
    truth = Scene(shapes).depth(camera)[0]
    hit = np.isfinite(truth)
    assert ((face >= 0) == hit).mean() > 0.995
    both = hit & (face >= 0)
    assert np.percentile(np.abs(depth[both] - truth[both]), 99) < 1e-3


def test_stage_renders_a_splat_and_meshes_it_in_the_world_frame(tmp_path) -> None:
    scene, cameras, T = Scene(), orbit(10, 128, 96), random_similarity(scale=2.7)
    write_sfm(tmp_path / "sfm", cameras, sparse_cloud(scene, cameras, 200, 0.3), T)
    for name in ("splat", "align", "out"):
        (tmp_path / name).mkdir()
    truth_splat(scene, cameras, stride=2).transformed(T).save(tmp_path / "splat" / "splat.ply")
    alignment = {"T_world_sfm": T.inverse().to_json(), "has_support": True, "support": {"polygon": OUTLINE.tolist()}}
    (tmp_path / "align" / "alignment.json").write_text(json.dumps(alignment))
    inputs = {n: tmp_path / n for n in ("sfm", "splat", "align")}
    result = mesh.run(inputs, mesh.Config(voxel_m=0.01), tmp_path / "out", tmp_path, Progress())
    surface = trimesh.load(tmp_path / "out" / "background.ply", process=False)
    table = _near(np.asarray(surface.vertices), [-0.55, -0.35, -0.03], [-0.4, 0.35, 0.03])
    assert len(table) > 50 and np.percentile(np.abs(table[:, 2]), 90) < 0.006
    assert result.metrics["triangles"] == len(surface.faces) and not result.metrics["watertight"]
    assert (tmp_path / "out" / "preview.png").stat().st_size > 2000
    origins = np.load(tmp_path / "out" / "rays.npz")["origins"]
    assert np.allclose(origins, [c.centre for c in cameras], atol=1e-6)


def test_moved_views_fuse_to_the_same_surface() -> None:
    views, T = truth_views(Scene(), orbit(6, 96, 72)), Similarity(2.0, np.eye(3), np.array([1.0, 2, 3]))
    back = mesh.to_world(moved_views(views, T), T.inverse())
    assert np.allclose(back[0].camera.T_world_cam, views[0].camera.T_world_cam)
    assert np.allclose(back[0].depth, views[0].depth, equal_nan=True, rtol=1e-6)
