# SPDX-License-Identifier: Apache-2.0
"""Triangle meshes that bodies carry, and those of a MuJoCo model's visible geoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import UsageError
from real2sim.sim import tessellate
from real2sim.sim.raycast import VISIBLE_GROUPS
from real2sim.sim.transforms import quat_to_matrix

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BodyMesh:
    """V vertices and F triangles that move with a body.

    body: which one, 0 is the world; vertices [V, 3] m, body frame; faces [F, 3] rows of the vertices; normals [V, 3]
    unit, body frame, or None for flat faces; colours [V, 3] sRGB in 0..1, or None for grey; uvs [V, 2], (0, 0) is the
    texture's first row and column, and texture [h, w, 3] uint8 sRGB, which multiplies the colours.
    """

    body: int
    vertices: Floats
    faces: NDArray[np.int32]
    normals: Floats | None = None
    colours: Floats | None = None
    uvs: Floats | None = None
    texture: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, Any] = {
            "vertices": np.float32,
            "faces": np.int32,
            "normals": np.float32,
            "colours": np.float32,
        }
        kinds |= {"uvs": np.float32, "texture": np.uint8}
        for name, kind in kinds.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), kind))
        n = len(self.vertices)
        for name, columns in {"vertices": 3, "normals": 3, "colours": 3, "uvs": 2}.items():
            value = getattr(self, name)
            if value is not None and value.shape != (n, columns):
                raise UsageError(
                    f"A mesh of {n} vertices needs {name} of shape {(n, columns)}, received {value.shape}."
                )
            if value is not None and not np.isfinite(value).all():
                raise UsageError(f"A mesh needs finite {name}: one of body {self.body} holds NaN or infinity.")
        if self.faces.ndim != 2 or self.faces.shape[1] != 3 or len(self.faces) == 0:
            raise UsageError(f"A mesh needs faces of shape (F, 3) with F > 0, received {self.faces.shape}.")
        if self.faces.min() < 0 or self.faces.max() >= n:
            raise UsageError(f"Faces name vertices 0..{n - 1}, received {self.faces.min()}..{self.faces.max()}.")
        if (self.uvs is None) != (self.texture is None):
            raise UsageError("A textured mesh needs both uvs and texture, received one of them.")


def model_meshes(model: Any, groups: Sequence[int] = VISIBLE_GROUPS, *, static: bool = True) -> list[BodyMesh]:
    """Meshes of a MuJoCo model's geoms of these groups, each in the frame of its body; primitives are tessellated.

    static: also those of bodies that are welded to the world. Colours are the material's where a geom has one.
    """
    meshes = []
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom])
        fixed = model.body_weldid[body] == 0
        if model.geom_group[geom] in groups and (static or not fixed) and _rgba(model, geom)[3] > 0:
            meshes.append(geom_mesh(model, geom))
    return meshes


def geom_mesh(model: Any, geom: int) -> BodyMesh:
    """One geom as triangles, body frame."""
    import mujoco

    types = mujoco.mjtGeom
    kind, size = types(model.geom_type[geom]), model.geom_size[geom]
    uvs = None
    if kind == types.mjGEOM_MESH:
        vertices, faces, normals, uvs = _asset(model, int(model.geom_dataid[geom]))
    elif kind == types.mjGEOM_HFIELD:
        vertices, faces, normals = _height_field(model, int(model.geom_dataid[geom]))
    elif kind == types.mjGEOM_SPHERE:
        vertices, faces, normals = tessellate.ellipsoid([size[0]] * 3)
    elif kind == types.mjGEOM_ELLIPSOID:
        vertices, faces, normals = tessellate.ellipsoid(size)
    elif kind == types.mjGEOM_CAPSULE:
        vertices, faces, normals = tessellate.capsule(size[0], size[1])
    elif kind == types.mjGEOM_CYLINDER:
        vertices, faces, normals = tessellate.cylinder(size[0], size[1])
    elif kind == types.mjGEOM_BOX:
        vertices, faces, normals = tessellate.box(size)
    elif kind == types.mjGEOM_PLANE:
        vertices, faces, normals = tessellate.plane(size[0], size[1])
    else:
        raise UsageError(f"Geom {geom} of type {kind.name} cannot be turned into triangles: give it a mesh.")
    R = quat_to_matrix(model.geom_quat[geom])
    texture, colour = _appearance(model, geom, uvs is not None)
    return BodyMesh(
        body=int(model.geom_bodyid[geom]),
        vertices=vertices @ R.T + model.geom_pos[geom],
        faces=faces,
        normals=normals @ R.T,
        colours=np.tile(colour, (len(vertices), 1)),
        uvs=uvs if texture is not None else None,
        texture=texture,
    )


def _rgba(model: Any, geom: int) -> NDArray[Any]:
    material = model.geom_matid[geom]
    return np.asarray(model.mat_rgba[material] if material >= 0 else model.geom_rgba[geom])


def _asset(model: Any, mesh: int) -> tuple[Any, Any, Any, Any]:
    """A mesh asset with a vertex for every corner of every face, since its normals and uvs have indices of their own."""

    def rows(name: str, count: str) -> slice:
        start = getattr(model, f"mesh_{name}adr")[mesh]
        return slice(start, start + getattr(model, f"mesh_{count}")[mesh])

    faces = rows("face", "facenum")
    vertices = model.mesh_vert[rows("vert", "vertnum")][model.mesh_face[faces].ravel()]
    normals = model.mesh_normal[rows("normal", "normalnum")][model.mesh_facenormal[faces].ravel()]
    uvs = None
    if model.mesh_texcoordadr[mesh] >= 0:
        uvs = model.mesh_texcoord[rows("texcoord", "texcoordnum")][model.mesh_facetexcoord[faces].ravel()]
    return vertices, np.arange(len(vertices)).reshape(-1, 3), normals, uvs


def _height_field(model: Any, field: int) -> tuple[Any, Any, Any]:
    nrow, ncol, start = model.hfield_nrow[field], model.hfield_ncol[field], model.hfield_adr[field]
    half_x, half_y, elevation, _ = model.hfield_size[field]
    heights = elevation * model.hfield_data[start : start + nrow * ncol].reshape(nrow, ncol)
    return tessellate.height_field(heights, half_x, half_y)


def _appearance(model: Any, geom: int, has_uvs: bool) -> tuple[NDArray[np.uint8] | None, Floats]:
    """A geom's texture, if it can be laid on it, and its colour, times the texture's mean where it cannot."""
    import mujoco

    material, colour = int(model.geom_matid[geom]), _rgba(model, geom)[:3].astype(np.float32)
    image = int(model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB]) if material >= 0 else -1
    if image < 0:
        return None, colour
    height, width, channels = model.tex_height[image], model.tex_width[image], model.tex_nchannel[image]
    start = model.tex_adr[image]
    texels = model.tex_data[start : start + height * width * channels].reshape(height, width, channels)[..., :3]
    flat = model.tex_type[image] == mujoco.mjtTexture.mjTEXTURE_2D
    if flat and has_uvs and channels >= 3:
        return texels, colour
    return None, colour * texels.mean((0, 1)).astype(np.float32) / 255
