# SPDX-License-Identifier: Apache-2.0
"""Shapes against closed forms and trimesh."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from real2sim.datasets.synthetic_shapes import (
    MugSize,
    Shape,
    ball,
    box,
    cylinder,
    handle_centre,
    mass_properties,
    merged_mesh,
    mug,
)

EXACT = 1e-9  # relative: float64 sums over some thousand triangles
FACETED = 5e-3  # relative: 96 chords round a circle enclose 0.07% less, which radii^5 in an inertia multiply
DENSITY = 700.0
SIZE = MugSize(0.041, 0.09)


def solid_box(size: np.ndarray) -> tuple[float, np.ndarray]:
    mass = DENSITY * size.prod()
    return mass, mass / 12 * np.diag((size**2).sum() - size**2)


def solid_cylinder(radius: float, height: float) -> tuple[float, np.ndarray]:
    mass = DENSITY * np.pi * radius**2 * height
    side = mass * (3 * radius**2 + height**2) / 12
    return mass, np.diag([side, side, mass * radius**2 / 2])


def solid_ball(radius: float) -> tuple[float, np.ndarray]:
    mass = DENSITY * 4 / 3 * np.pi * radius**3
    return mass, 0.4 * mass * radius**2 * np.eye(3)


@pytest.mark.parametrize(
    ("shape", "expected", "height", "tolerance"),
    [
        (box((0.1, 0.06, 0.15)), solid_box(np.array([0.1, 0.06, 0.15])), 0.075, EXACT),
        (cylinder(0.035, 0.11), solid_cylinder(0.035, 0.11), 0.055, FACETED),
        (ball(0.04), solid_ball(0.04), 0.04, FACETED),
    ],
    ids=["box", "cylinder", "ball"],
)
def test_mass_and_inertia_are_those_of_the_closed_form(
    shape: Shape, expected: tuple[float, np.ndarray], height: float, tolerance: float
) -> None:
    found = mass_properties(*merged_mesh(shape.values()), DENSITY)
    mass, inertia = expected
    assert found.mass == pytest.approx(mass, rel=tolerance)
    np.testing.assert_allclose(found.com, [0, 0, height], atol=1e-12)
    np.testing.assert_allclose(found.inertia, inertia, rtol=tolerance, atol=1e-12)


def test_the_mug_weighs_its_clay_and_not_its_coffee() -> None:
    """Wall + base by Pappus less what the rounded lip lacks, plus the handle's swept disc."""
    inner, lip = SIZE.radius - SIZE.wall, SIZE.wall / 2
    cup = np.pi * (SIZE.radius**2 * SIZE.height - inner**2 * (SIZE.height - SIZE.base))
    cup -= 2 * np.pi * (SIZE.radius - lip) * lip**2 * (2 - np.pi / 2)
    angle = np.linspace(-np.pi / 2, np.pi / 2, 2001)
    arc = np.hypot(SIZE.reach * np.sin(angle), SIZE.span / 2 * np.cos(angle)).mean() * np.pi
    handle = np.pi * SIZE.tube**2 * arc
    found = mass_properties(*merged_mesh(mug(SIZE).values()), DENSITY)
    # The handle's roots follow the wall's curve (some mm3 of 1e5) and its tube has 24 sides: within 1% in all.
    assert found.volume == pytest.approx(cup + handle, rel=1e-2)


@pytest.mark.parametrize("shape", [box((0.1, 0.06, 0.15)), cylinder(0.035, 0.11), ball(0.04), mug(SIZE)])
def test_meshes_are_closed_and_trimesh_agrees_on_their_integrals(shape: Shape) -> None:
    vertices, faces = merged_mesh(shape.values())
    mesh = trimesh.Trimesh(vertices, faces, process=False)
    mesh.density = DENSITY
    found = mass_properties(vertices, faces, DENSITY)
    assert mesh.is_watertight and mesh.is_winding_consistent and mesh.volume > 0
    assert found.mass == pytest.approx(mesh.mass, rel=EXACT)
    np.testing.assert_allclose(found.com, mesh.center_mass, atol=1e-12)
    np.testing.assert_allclose(found.inertia, mesh.moment_inertia, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("shape", [box((0.1, 0.06, 0.15)), cylinder(0.035, 0.11), ball(0.04), mug(SIZE)])
def test_normals_point_out_of_the_surface_that_they_belong_to(shape: Shape) -> None:
    for name, patch in shape.items():
        if name.startswith("handle_"):
            continue  # the caps lie inside the clay and face into the cup
        vertices, faces = patch.mesh()
        a, b, c = (vertices[faces[:, k]] for k in range(3))
        flat = np.cross(b - a, c - a)
        smooth = patch.normals.reshape(-1, 3)[faces].mean(1)
        assert np.all((flat * smooth).sum(1) > 0.9 * np.linalg.norm(flat, axis=1)), name


def first_hit(vertices: np.ndarray, faces: np.ndarray, origin: np.ndarray, direction: np.ndarray) -> float:
    """Distance to the first face that a ray meets, infinity where it meets none (Moeller and Trumbore 1997)."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    p = np.cross(direction, c - a)
    determinant = ((b - a) * p).sum(1)
    inverse = 1 / np.where(determinant == 0, np.inf, determinant)
    q = np.cross(origin - a, b - a)
    u, v, t = (x * inverse for x in (((origin - a) * p).sum(1), (q * direction).sum(1), (q * (c - a)).sum(1)))
    met = t[(u >= 0) & (v >= 0) & (u + v <= 1) & (t > 0)]
    return float(met.min(initial=np.inf))


def test_the_handle_leaves_a_hole_and_the_cup_is_open() -> None:
    vertices, faces = merged_mesh(mug(SIZE).values())
    hole = handle_centre(SIZE)
    beside, y, down = np.array([0, 0.2, 0]), np.array([0, 1.0, 0]), np.array([0, 0, -1.0])
    assert first_hit(vertices, faces, hole - beside, y) == np.inf, "a ray through the hole passes"
    grip = hole + np.array([SIZE.reach * 0.6, 0, 0])
    assert 0.19 < first_hit(vertices, faces, grip - beside, y) < 0.2, "a ray farther out meets the tube"
    assert first_hit(vertices, faces, np.array([0.002, 0.001, 0.5]), down) == pytest.approx(0.5 - SIZE.base), (
        "the cup is open"
    )
