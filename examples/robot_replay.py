# SPDX-License-Identifier: Apache-2.0
"""A robot follows a recorded trajectory inside the splat of a lab: once as splats of its links, once as meshes.

`python examples/robot_replay.py FOLDER [--robot MJCF] [--out strip.png] [--video replay.mp4]`

FOLDER holds a scene splat (background*.ply, z up), one splat for each link in the link's own frame
(link_splats/<body>.ply), a MuJoCo model (*.xml) and a trajectory (replay*.npz with dof_pos [frames, dofs], the arm's
joints first). --robot: another model with bodies of the same names, whose visual geoms are drawn as meshes; by default
the meshes are those of FOLDER's model that are there. Every frame of both films is one world of one call.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from PIL import Image

from real2sim.sim.body_meshes import BodyMesh, geom_mesh
from real2sim.sim.film import write_video
from real2sim.sim.raycast import VISIBLE_GROUPS
from real2sim.sim.render.batch import BatchCameras, BatchRenderer
from real2sim.sim.render.meshes import Meshes
from real2sim.sim.render.splat import Splat, concatenate
from real2sim.sim.views import look_at

GREY = 0.75


def read_model(path: Path) -> Any:
    """The MuJoCo model without the meshes whose files are missing."""
    spec = mujoco.MjSpec.from_file(str(path))
    spec.meshdir = spec.meshdir if (path.parent / spec.meshdir).is_dir() else "."
    missing = {m.name or Path(m.file).stem for m in spec.meshes if not (path.parent / spec.meshdir / m.file).exists()}
    for geom in list(spec.geoms):
        if geom.meshname in missing:
            spec.delete(geom)
    for mesh in list(spec.meshes):
        if (mesh.name or Path(mesh.file).stem) in missing:
            spec.delete(mesh)
    return spec.compile()


def robot_meshes(model: Any, names: list[str]) -> list[BodyMesh]:
    """The visible meshes of the model on bodies of these names; those that touch, where none is visible."""
    named = [g for g in range(model.ngeom) if model.body(model.geom_bodyid[g]).name in names]
    visible = [g for g in named if model.geom_group[g] in VISIBLE_GROUPS]
    geoms = visible or named
    meshes = []
    for geom in geoms:
        mesh = geom_mesh(model, geom)
        body = names.index(model.body(model.geom_bodyid[geom]).name) + 1
        colours = mesh.colours if visible else np.full_like(mesh.vertices, GREY)
        meshes.append(BodyMesh(body, mesh.vertices, mesh.faces, mesh.normals, colours, mesh.uvs, mesh.texture))
    return meshes


def body_poses(model: Any, joints: np.ndarray, names: list[str], base: np.ndarray) -> np.ndarray:
    """Poses [frames, 1 + bodies, 7] of the named bodies for joint angles [frames, n], the base at `base` [3]."""
    data, frames = mujoco.MjData(model), []
    arm = int((model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE).sum())  # a recording may continue with another hand's
    for q in joints:
        data.qpos[:arm] = q[:arm]
        mujoco.mj_kinematics(model, data)
        bodies = [data.body(name) for name in names]
        frames.append([[0, 0, 0, 1, 0, 0, 0], *[np.r_[b.xpos + base, b.xquat] for b in bodies]])
    return np.array(frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--robot", type=Path, help="an MJCF model whose visual geoms are the meshes")
    parser.add_argument("--out", type=Path, default=Path("replay.png"), help="strip: splats above, meshes below")
    parser.add_argument("--video", type=Path, help="film of all frames, splats beside meshes")
    parser.add_argument("--frames", type=int, default=5, help="pictures of the strip, or of the film")
    parser.add_argument("--size", type=int, nargs=2, default=(400, 300), help="of a picture [px]")
    parser.add_argument("--base", type=float, nargs=3, default=(0.25, 0.0, 0.84), help="of the robot in the splat [m]")
    parser.add_argument("--eye", type=float, nargs=3, default=(-0.45, 1.1, 1.6), help="of the camera [m]")
    parser.add_argument("--target", type=float, nargs=3, default=(0.6, 0.0, 1.05), help="what it looks at [m]")
    parser.add_argument("--fov", type=float, default=55.0, help="horizontal [degrees]")
    options = parser.parse_args()

    links = sorted((options.folder / "link_splats").glob("*.ply"))
    names = [path.stem for path in links]
    model = read_model(next(options.folder.glob("*.xml")))
    joints = np.load(next(options.folder.glob("replay*.npz")))["dof_pos"]
    joints = joints[np.linspace(0, len(joints) - 1, options.frames).round().astype(int)]
    poses = body_poses(model, joints, names, np.array(options.base))
    scene = Splat.load(next(options.folder.glob("background*.ply")))
    robot = [Splat.load(path) for path in links]

    width, height = options.size
    focal = width / 2 / np.tan(np.radians(options.fov) / 2)
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    cameras = BatchCameras(np.linalg.inv(look_at(options.eye, options.target))[None], K[None], width, height)
    ids = np.repeat(np.arange(len(links) + 1), [len(part) for part in (scene, *robot)])
    meshes = Meshes(robot_meshes(read_model(options.robot) if options.robot else model, names))
    as_splats = BatchRenderer(concatenate([scene, *robot]), ids, "cpu").render(poses, cameras)["rgb"][:, 0]
    alone = BatchRenderer(scene, np.zeros(len(scene), np.int32), "cpu")
    as_meshes = alone.render(poses, cameras, meshes=meshes)["rgb"][:, 0]
    strip = torch.cat([torch.cat(list(film), 1) for film in (as_splats, as_meshes)], 0)
    Image.fromarray(strip.numpy()).save(options.out)
    if options.video:
        pictures = (torch.cat(pair, 1).numpy() for pair in zip(as_splats, as_meshes, strict=True))
        write_video(pictures, options.video, 2 * width, height, 25)


if __name__ == "__main__":
    main()
