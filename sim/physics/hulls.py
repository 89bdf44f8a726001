# SPDX-License-Identifier: Apache-2.0
"""Convex hulls of meshes as polytopes (vertices, planar faces, vertex neighbours), and their triangles for rays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COPLANAR = 1e-5  # hull triangles whose unit normals differ by less are one face: their vertices are float32


@dataclass(frozen=True)
class Hull:
    """vertices [V, 3] [m]; faces: vertex indices counter-clockwise seen from outside; normals [F, 3] outward."""

    vertices: NDArray[np.float64]
    faces: list[list[int]]
    normals: NDArray[np.float64]

    def neighbours(self) -> list[list[int]]:
        """Vertices that share an edge with each vertex."""
        near: list[set[int]] = [set() for _ in self.vertices]
        for face in self.faces:
            for a, b in zip(face, face[1:] + face[:1]):
                near[a].add(b)
                near[b].add(a)
        return [sorted(s) for s in near]


def convex_hull(points: NDArray[np.float64]) -> Hull:
    """Hull with coplanar triangles merged into faces."""
    from scipy.spatial import ConvexHull

    hull = ConvexHull(points)
    index = {int(v): i for i, v in enumerate(hull.vertices)}
    vertices = points[hull.vertices]
    centre = vertices.mean(axis=0)
    planes = hull.equations
    group = _merge_coplanar(planes[:, :3], hull.neighbors)
    faces, normals = [], []
    for g in sorted(set(group)):
        triangles = [t for t in range(len(planes)) if group[t] == g]
        normal = planes[triangles, :3].mean(axis=0)
        normal /= np.linalg.norm(normal)
        members = sorted({index[int(v)] for t in triangles for v in hull.simplices[t]})
        faces.append(_ordered(vertices, members, normal))
        normals.append(normal)
    assert np.all(np.einsum("fk,fk->f", np.array(normals), vertices[[f[0] for f in faces]] - centre) > 0)
    return Hull(vertices, faces, np.array(normals))


def _merge_coplanar(normals: NDArray[np.float64], neighbours: NDArray[np.int32]) -> list[int]:
    group = list(range(len(normals)))
    for seed in range(len(normals)):
        if group[seed] != seed:
            continue
        stack = [seed]
        while stack:
            t = stack.pop()
            for n in neighbours[t]:
                if group[n] == n and n > seed and np.linalg.norm(normals[n] - normals[seed]) < COPLANAR:
                    group[n] = seed
                    stack.append(int(n))
    return group


def _ordered(vertices: NDArray[np.float64], members: list[int], normal: NDArray[np.float64]) -> list[int]:
    centre = vertices[members].mean(axis=0)
    axis = vertices[members[0]] - centre
    axis -= normal * (axis @ normal)
    other = np.cross(normal, axis)
    angle = np.arctan2((vertices[members] - centre) @ other, (vertices[members] - centre) @ axis)
    return [members[i] for i in np.argsort(angle, kind="stable")]


def mesh_arrays(mj: Any) -> dict[str, Any]:
    """Hulls of the meshes that collide, triangles of all."""
    colliding = {int(mj.geom_dataid[g]) for g in range(mj.ngeom) if mj.geom_type[g] == 7 and _collides(mj, g)}
    vert: list[list[float]] = []
    faces: list[list[int]] = []
    normals: list[list[float]] = []
    near: list[list[int]] = []
    vertadr, vertnum, faceadr, facenum = [], [], [], []
    for i in range(mj.nmesh):
        vertadr.append(len(vert))
        faceadr.append(len(faces))
        if i in colliding:
            points = np.asarray(
                mj.mesh_vert[mj.mesh_vertadr[i] : mj.mesh_vertadr[i] + mj.mesh_vertnum[i]], dtype=np.float64
            )
            hull = convex_hull(points)
            vert += hull.vertices.tolist()
            faces += hull.faces
            normals += hull.normals.tolist()
            near += hull.neighbours()
        vertnum.append(len(vert) - vertadr[-1])
        facenum.append(len(faces) - faceadr[-1])
    face_count = np.array([len(f) for f in faces], dtype=np.int32)
    near_count = np.array([len(n) + 1 for n in near], dtype=np.int32)
    start = lambda n: np.concatenate([[0], np.cumsum(n)])[: len(n)]  # noqa: E731
    return {
        "sizes": {"nneighbour": int(near_count.sum())},
        "ints": {
            "mesh_vertadr": vertadr, "mesh_vertnum": vertnum, "mesh_faceadr": faceadr, "mesh_facenum": facenum,
            "face_vertadr": start(face_count), "face_vertnum": face_count, "face_vert": [v for f in faces for v in f],
            "neighbour_adr": start(near_count), "neighbour": [v for n in near for v in [*n, -1]],
            "mesh_triadr": mj.mesh_faceadr, "mesh_trinum": mj.mesh_facenum, "mesh_tri": mj.mesh_face, "mesh_trivertadr": mj.mesh_vertadr,  # noqa: E501
        },
        "reals": {"mesh_vert": vert, "face_normal": normals, "mesh_trivert": mj.mesh_vert},
    }  # fmt: skip


def _collides(mj: Any, geom: int) -> bool:
    return bool(mj.geom_contype[geom] or mj.geom_conaffinity[geom]) or geom in set(mj.pair_geom1.tolist()) | set(
        mj.pair_geom2.tolist()
    )
