# SPDX-License-Identifier: Apache-2.0
"""Objects cut out of a scene: silhouettes, votes, the emptied support, bodies, and what a person says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_scene import BOX_AT, BOX_HALF, POLYGON, box_mesh, world_cameras, world_splat

from real2sim.errors import CaptureError
from real2sim.sim.cameras import Camera
from real2sim.sim.render.rasterize import contributions, render
from real2sim.stages.background import footprints, only, seed_support, without_residue
from real2sim.stages.contract import Progress
from real2sim.stages.instances import Instance, Instances, read_instances, write_instances
from real2sim.stages.lift import owners, rendered_ids, votes
from real2sim.stages.object_card import Card, read_cards
from real2sim.stages.objects import Config, body_frame, convex_parts, volumetric_iou
from real2sim.stages.silhouettes import Silhouette, carve, draw_instances, iou, refine, surface_of
from real2sim.stages.support_texture import emptied, support_texture, widened

BOX = box_mesh(np.array([*BOX_AT, BOX_HALF[2]]), BOX_HALF)
VOXEL = 0.005
VOLUME_TOLERANCE = 0.08  # the hull of 16 silhouettes is larger than the solid, and masks are whole pixels
VOTE_TOLERANCE = 2e-4  # of a Gaussian's summed weight: two ways through the rasteriser in single precision
DRAWN = 0.85  # Gaussians of 12 mm blur the outline of a box that is 30 pixels wide
OWNED = 0.97  # Gaussians at the foot of the box show through half its edge, half the table


@pytest.fixture(scope="module")
def drawn() -> list[Silhouette]:
    return [draw_instances([BOX], camera) for camera in world_cameras()]


@pytest.fixture(scope="module")
def scene(drawn: list[Silhouette]) -> Instances:
    rows = [Instance(1, "object_1", 1.0, len(drawn))]
    return Instances(rows, [d.camera for d in drawn], [d.ids for d in drawn], {1: BOX})


def photos() -> list[np.ndarray]:
    return [
        np.round(255 * np.clip(render(world_splat(), camera)["rgb"], 0, 1)).astype(np.uint8)
        for camera in world_cameras()
    ]


def test_box_carved_from_its_silhouettes_has_its_volume(drawn: list[Silhouette]) -> None:
    import trimesh

    low, high = BOX[0].min(0) - 0.03, BOX[0].max(0) + 0.03
    low[2] = 0.0
    shape = np.ceil((high - low) / VOXEL).astype(int)
    z = low[2] + VOXEL * (np.arange(shape[2]) + 0.5)
    bound = np.broadcast_to((z - 2 * BOX_HALF[2])[None, None], tuple(shape)).astype(np.float32)
    field = carve(1, drawn, low, bound, VOXEL, agree=1.0)
    mesh = trimesh.Trimesh(*surface_of(field, low, VOXEL))
    assert mesh.is_watertight
    assert mesh.volume == pytest.approx(8 * BOX_HALF.prod(), rel=VOLUME_TOLERANCE)


def test_what_stands_in_front_says_nothing_about_what_is_behind(drawn: list[Silhouette]) -> None:
    camera = drawn[0].camera
    hiding = Silhouette(camera, np.full_like(drawn[0].ids, 2), np.full_like(drawn[0].depth, 0.1))
    hiding.ids[:8, :8] = 1  # its own mask is elsewhere, but all the rest is hidden
    bound = np.full((4, 4, 4), -0.02, np.float32)
    low = np.array([*BOX_AT, 0.01])
    assert (carve(1, [*drawn, hiding], low, bound, VOXEL, agree=1.0) < 0).all()


def test_outline_moves_to_the_photos_edge() -> None:
    camera = Camera("a", 120, 90, np.diag([100.0, 100.0, 1.0]), np.eye(4))
    rng = np.random.default_rng(0)
    photo = np.clip(rng.normal(60, 8, (90, 120, 3)), 0, 255).astype(np.uint8)
    truth = np.zeros((90, 120), bool)
    truth[25:65, 40:85] = True
    photo[truth] = np.clip(rng.normal((200, 120, 40), 8, (int(truth.sum()), 3)), 0, 255).astype(np.uint8)
    rough = np.zeros((90, 120), np.uint8)
    rough[27:66, 38:83] = 1
    refined = refine(photo, Silhouette(camera, rough, np.full((90, 120), np.inf, np.float32)), band=5)
    assert iou(refined.ids == 1, truth) > 0.97 > iou(rough == 1, truth)


def test_votes_of_all_ids_sum_to_the_rasterisers_own_weights(drawn: list[Silhouette]) -> None:
    splat = world_splat(0.03)
    some = drawn[:2]
    counts = votes(splat, [d.camera for d in some], [d.ids for d in some], 4, Progress())
    expected = sum(contributions(splat, d.camera)[0] for d in some)
    assert np.abs(counts.sum(1) - expected).max() < VOTE_TOLERANCE * expected.max()
    assert np.abs(counts[:, 2:]).max() < VOTE_TOLERANCE * expected.max()


def test_gaussians_of_the_box_belong_to_it_and_draw_its_masks(drawn: list[Silhouette], scene: Instances) -> None:
    splat = world_splat()
    found = owners(votes(splat, scene.cameras, scene.ids, 1, Progress()), 0.5)
    on_box = splat.means[:, 2] > 0.012
    assert ((found.owner == 1) == on_box).mean() > OWNED
    ids = rendered_ids(splat, found.owner, drawn[3].camera)
    assert iou(ids == 1, drawn[3].ids == 1) > DRAWN


def test_floating_background_at_an_objects_surface_is_its_own(scene: Instances) -> None:
    corner = BOX[0][7]
    means = np.array([corner + 0.004, corner + 0.2, [*BOX_AT, 0.0]])
    assert without_residue(means, np.zeros(3, np.uint8), scene).tolist() == [1, 0, 0]


def test_support_shows_what_other_photos_saw_behind(scene: Instances) -> None:
    polygon, cell = np.array(POLYGON), 0.01
    hidden = [widened(ids) for ids in scene.ids]
    closed = footprints(scene, polygon, cell)
    texture = support_texture(photos(), scene.cameras, hidden, polygon, cell, closed)
    assert not texture.seen[closed].any() and texture.seen.mean() > 0.8
    table = texture.rgb[closed].mean(0)
    assert table[0] > table[2], "the hole has the table's brown, not the box's blue"
    rgb, known = emptied(photos()[1], scene.cameras[1], hidden[1], texture, polygon)
    assert known[scene.ids[1] > 0].mean() > 0.5
    blue = (scene.ids[1] > 0) & known
    assert rgb[blue].mean(0)[0] > rgb[blue].mean(0)[2]


def test_seeds_lie_on_the_support_below_the_object(scene: Instances) -> None:
    polygon, cell = np.array(POLYGON), 0.004
    closed = footprints(scene, polygon, cell)
    texture = support_texture(photos(), scene.cameras, [widened(i) for i in scene.ids], polygon, cell, closed)
    seeds = seed_support(texture, closed, polygon, 0.012, 1)
    assert np.abs(seeds.means[:, 2]).max() < 0.001
    assert (np.abs(seeds.means[:, :2] - BOX_AT) < BOX_HALF[:2] + 0.025).all()
    assert len(seeds) > 0.8 * 4 * BOX_HALF[:2].prod() / 0.012**2


def test_instances_are_read_as_they_were_written(scene: Instances, tmp_path: Path) -> None:
    write_instances(tmp_path, scene, "geometric")
    read = read_instances(tmp_path, scene.cameras)
    assert read.rows == scene.rows
    assert all((a == b).all() for a, b in zip(read.ids, scene.ids))
    assert only(read, []).rows == [] and not only(read, []).ids[0].any()


@pytest.mark.parametrize("degrees", [-80, -30, 0, 12, 44])
def test_body_frame_follows_the_footprint(degrees: float) -> None:
    turn = np.radians(degrees)
    R = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    vertices, _ = box_mesh(np.array([0, 0, 0.05]), np.array([0.08, 0.03, 0.05]))
    T = body_frame(vertices @ R.T + [0.3, -0.1, 0])
    assert np.allclose(T[:3, 3], [0.3, -0.1, 0], atol=1e-6)
    assert np.allclose(T[:3, :3], R, atol=1e-5)


def test_box_is_one_convex_part(tmp_path: Path) -> None:
    vertices, faces = BOX
    axes = [np.arange(low, high, 0.006) for low, high in zip(vertices.min(0) - 0.02, vertices.max(0) + 0.02)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    solid = ((points > vertices.min(0)) & (points < vertices.max(0))).all(1)
    parts, agreement = convex_parts(vertices, faces, points, solid, Config(), tmp_path)
    assert len(parts) == 1 and agreement > 0.999
    assert volumetric_iou([], points, solid) == 0.0


def test_cards_decide_mass_and_name_what_is_wrong(tmp_path: Path) -> None:
    assert read_cards(tmp_path) == {}
    path = tmp_path / "objects.yaml"
    path.write_text("object_1: {material: ceramic}\nobject_2: {mass_kg: 0.35, friction: 0.5}\n")
    cards = read_cards(tmp_path)
    mass, _ = cards["object_1"].mass_of(2e-4)
    assert mass["value"] == pytest.approx(0.2) and mass["low"] < mass["value"] < mass["high"]
    assert cards["object_2"].mass_of(1e-3)[0]["value"] == 0.35 and cards["object_2"].friction["value"] == 0.5
    assert "assumed" in Card().mass_of(1e-3)[1]["source"]
    for text, message in (("object_1: {weight: 1}", "weight"), ("object_1: {mass_kg: -1}", "mass_kg"), ("[1]", "form")):
        path.write_text(text)
        with pytest.raises(CaptureError, match=message):
            read_cards(tmp_path)
