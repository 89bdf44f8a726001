# SPDX-License-Identifier: Apache-2.0
"""scene.xml: a bundle as MJCF that `mujoco.MjModel.from_xml_path` loads as it is.

Group 2 holds what is seen and never touches (contype = conaffinity = 0), group 3 what touches and is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import matrix_to_quat

TIMESTEP = 0.002
VISUAL_GROUP = 2
COLLISION_GROUP = 3
TORSIONAL, ROLLING = 0.005, 0.001  # friction of bodies [m]; MuJoCo's rolling default is a tenth of it


@dataclass(frozen=True)
class Mesh:
    """A mesh file of the scene. inertia: how MuJoCo integrates it ("convex", or "shell" where its volume is nil)."""

    name: str
    file: str
    inertia: str


@dataclass(frozen=True)
class FreeBody:
    """A rigid body with a free joint. Pose in the world [m], wxyz; mass [kg]; com [3] and inertia [3, 3] about it, body
    frame; sliding friction [-]; convex parts and the visual mesh, body frame."""

    name: str
    position: Sequence[float]
    quat: Sequence[float]
    mass: float
    com: Sequence[float]
    inertia: Sequence[Sequence[float]]
    friction: float
    parts: list[Mesh]
    visual: Mesh
    colour: Sequence[float] = (0.6, 0.6, 0.6)


@dataclass
class StaticScene:
    """What scene.xml says about the static background. Files are relative to scene.xml; lengths in m, world frame."""

    slab: dict[str, Any] | None  # {"size": half extents [3], "pos": [3], "quat": wxyz [4]}
    parts: list[Mesh]
    visual: Mesh | None = None
    colour: Sequence[float] = (0.6, 0.6, 0.6)  # of the visual mesh: the mean of its vertex colours
    heightfield: dict[str, Any] | None = None  # {"file", "size": [rx, ry, elevation, base], "pos": [3]}
    friction: Sequence[float] = (0.6, 0.005, 0.0001)  # sliding [-], torsional [m], rolling [m]
    cameras: list[Camera] = field(default_factory=list)
    bodies: list[FreeBody] = field(default_factory=list)
    extent: float = 1.0  # [m], sets the viewer's clipping planes and zoom
    centre: Sequence[float] = (0.0, 0.0, 0.0)


def numbers(values: Any) -> str:
    """Numbers as MJCF writes them: to nanometres, with nothing but 0 for rounding noise."""
    return " ".join(f"{round(float(v), 9) + 0.0:.9g}" for v in np.asarray(values, np.float64).ravel())


def usable_inertia(path: Path, *, collides: bool) -> tuple[str | None, str]:
    """How MuJoCo can take this mesh: ("convex", ""), ("shell", why), or (None, why) where it cannot.

    MuJoCo refuses a mesh of fewer than four vertices, one whose vertices lie in a plane when it collides, and one of
    nearly no volume unless its inertia is that of a shell.
    """
    import mujoco

    reason = ""
    for inertia in ("convex", "shell"):
        # A visual mesh need not be closed, and its convex hull is never needed.
        if not collides and inertia == "convex":
            continue
        spec = mujoco.MjSpec()
        spec.add_mesh(
            name="mesh", file=str(path), inertia=getattr(mujoco.mjtMeshInertia, f"mjMESH_INERTIA_{inertia.upper()}")
        )
        contact = int(collides)
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="mesh", contype=contact, conaffinity=contact)
        try:
            spec.compile()
        except ValueError as error:
            reason = str(error).removeprefix("Error: ").splitlines()[0]
        else:
            return inertia, reason
    return None, reason


def scene_xml(name: str, scene: StaticScene) -> str:
    """The MJCF text."""
    root = ElementTree.Element("mujoco", model=name)
    ElementTree.SubElement(root, "compiler", angle="radian", autolimits="true")
    ElementTree.SubElement(root, "option", timestep=numbers(TIMESTEP), gravity="0 0 -9.81")
    ElementTree.SubElement(root, "statistic", extent=numbers(scene.extent), center=numbers(scene.centre))
    _visual(root)
    _assets(root, scene)
    world = ElementTree.SubElement(root, "worldbody")
    ElementTree.SubElement(
        world, "light", name="sky", type="directional", pos="0 0 3", dir="-0.3 -0.2 -1", diffuse="0.6 0.6 0.6",
        specular="0.1 0.1 0.1", castshadow="true",
    )  # fmt: skip
    _background(world, scene)
    for body in scene.bodies:
        _free_body(root, world, body)
    for camera in scene.cameras:
        _camera(world, camera)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _visual(root: ElementTree.Element) -> None:
    visual = ElementTree.SubElement(root, "visual")
    ElementTree.SubElement(visual, "headlight", ambient="0.45 0.45 0.45", diffuse="0.35 0.35 0.35", specular="0 0 0")
    ElementTree.SubElement(visual, "global", offwidth="1280", offheight="960")
    ElementTree.SubElement(visual, "map", znear="0.005", zfar="50")


def _assets(root: ElementTree.Element, scene: StaticScene) -> None:
    asset = ElementTree.SubElement(root, "asset")
    ElementTree.SubElement(
        asset, "texture", type="skybox", builtin="gradient", rgb1="0.72 0.78 0.84", rgb2="0.32 0.36 0.42",
        width="128", height="768",
    )  # fmt: skip
    ElementTree.SubElement(
        asset, "material", name="background", rgba=numbers([*scene.colour, 1]), specular="0.1", shininess="0.1"
    )
    ElementTree.SubElement(asset, "material", name="collider", rgba="0.35 0.6 0.85 0.6", specular="0", shininess="0")
    for mesh in [*scene.parts, *([scene.visual] if scene.visual else [])]:
        ElementTree.SubElement(asset, "mesh", name=mesh.name, file=mesh.file, inertia=mesh.inertia)
    if scene.heightfield:
        size = numbers(scene.heightfield["size"])
        ElementTree.SubElement(asset, "hfield", name="heightfield", file=scene.heightfield["file"], size=size)


def _background(world: ElementTree.Element, scene: StaticScene) -> None:
    body = ElementTree.SubElement(world, "body", name="background")
    touch = {"group": str(COLLISION_GROUP), "material": "collider", "friction": numbers(scene.friction)}
    if scene.slab:
        box = {key: numbers(scene.slab[key]) for key in ("size", "pos", "quat")}
        ElementTree.SubElement(body, "geom", {"name": "support", "type": "box", **box, **touch})
    for mesh in scene.parts:
        ElementTree.SubElement(body, "geom", {"name": mesh.name, "type": "mesh", "mesh": mesh.name, **touch})
    if scene.heightfield:
        place = {"hfield": "heightfield", "pos": numbers(scene.heightfield["pos"])}
        ElementTree.SubElement(body, "geom", {"name": "heightfield", "type": "hfield", **place, **touch})
    if scene.visual:
        ElementTree.SubElement(
            body, "geom", name="visual", type="mesh", mesh=scene.visual.name, group=str(VISUAL_GROUP),
            material="background", contype="0", conaffinity="0",
        )  # fmt: skip


def _free_body(root: ElementTree.Element, world: ElementTree.Element, body: FreeBody) -> None:
    assets = root.find("asset")
    assert assets is not None
    for mesh in [*body.parts, body.visual]:
        ElementTree.SubElement(assets, "mesh", name=mesh.name, file=mesh.file, inertia=mesh.inertia)
    node = ElementTree.SubElement(world, "body", name=body.name, pos=numbers(body.position), quat=numbers(body.quat))
    ElementTree.SubElement(node, "freejoint", name=body.name)
    ElementTree.SubElement(
        node, "inertial", pos=numbers(body.com), mass=numbers(body.mass), fullinertia=numbers(full_inertia(body))
    )
    # Friction is the larger of two geoms' by default; priority makes it the object's own. Rolling friction holds what
    # is round: a ball of many flat faces would else creep.
    touch = {"group": str(COLLISION_GROUP), "material": "collider", "condim": "6", "priority": "1"}
    touch["friction"] = numbers([body.friction, TORSIONAL, ROLLING])
    for mesh in body.parts:
        ElementTree.SubElement(node, "geom", {"name": mesh.name, "type": "mesh", "mesh": mesh.name, **touch})
    ElementTree.SubElement(
        node, "geom", name=body.visual.name, type="mesh", mesh=body.visual.name, group=str(VISUAL_GROUP),
        rgba=numbers([*body.colour, 1]), contype="0", conaffinity="0",
    )  # fmt: skip


def full_inertia(body: FreeBody) -> list[float]:
    """The inertia as MJCF writes it: xx yy zz xy xz yz [kg m2]."""
    matrix = np.asarray(body.inertia, np.float64)
    return [float(matrix[i, j]) for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]


def add_free_body(spec: Any, body: FreeBody) -> None:
    """The same body in a mujoco.MjSpec, without its visual mesh; the parts' files are opened as they are named."""
    import mujoco

    node = spec.worldbody.add_body(
        name=body.name, pos=body.position, quat=body.quat, mass=body.mass, ipos=body.com,
        fullinertia=full_inertia(body), explicitinertial=True,
    )  # fmt: skip
    node.add_freejoint()
    for mesh in body.parts:
        spec.add_mesh(name=mesh.name, file=mesh.file)
        node.add_geom(
            type=mujoco.mjtGeom.mjGEOM_MESH, meshname=mesh.name, condim=6, priority=1,
            friction=[body.friction, TORSIONAL, ROLLING],
        )  # fmt: skip


def _camera(world: ElementTree.Element, camera: Camera) -> None:
    """OpenGL cameras look along -z with y up: the OpenCV pose turned half around its x axis."""
    rotation = camera.T_world_cam[:3, :3] @ np.diag([1.0, -1.0, -1.0])
    fovy = np.degrees(
        2 * np.arctan2(camera.height / 2, camera.K[1, 1])
    )  # degrees in MJCF, whatever compiler/angle says
    ElementTree.SubElement(
        world, "camera", name=camera.name, pos=numbers(camera.centre), quat=numbers(matrix_to_quat(rotation)),
        fovy=numbers(fovy), resolution=f"{camera.width} {camera.height}",
    )  # fmt: skip
