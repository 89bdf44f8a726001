# SPDX-License-Identifier: Apache-2.0
"""Pictures of a bundle's worlds: its splats, and the meshes of what has none, through the batch renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.errors import UsageError
from real2sim.sim.body_meshes import model_meshes
from real2sim.sim.bundle import Bundle
from real2sim.sim.cameras import Camera
from real2sim.sim.render.batch import BatchCameras, BatchRenderer, Output, OutputType
from real2sim.sim.render.meshes import Lights, Meshes
from real2sim.sim.render.splat import Splat, concatenate

BACKGROUND = "background"


class SceneRenderer:
    """The Gaussians of a bundle on MuJoCo's bodies, and the visible geoms of all bodies without Gaussians as meshes.

    background: its Gaussians, world frame; objects: those of movable bodies, body frame, by MuJoCo body.
    """

    def __init__(
        self,
        bundle: Bundle,
        model: Any,
        background: Splat,
        objects: Mapping[int, Splat],
        *,
        device: str = "cpu",
        lights: Lights | None = None,
    ) -> None:
        import mujoco

        self._background = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, BACKGROUND)
        self._nbody = model.nbody
        parts, bodies = [background, *objects.values()], [0, *objects]
        template = concatenate(parts)
        ids = np.repeat(bodies, [len(part) for part in parts])
        covered = {0, self._background, *bodies}
        meshes = [mesh for mesh in model_meshes(model) if mesh.body not in covered]
        self.meshes = Meshes(meshes, lights or Lights()) if meshes else None
        self.renderer = BatchRenderer(template, ids, device, rasterize_mode=_mode(bundle))

    def render(
        self,
        xpos: Any,
        xquat: Any,
        cameras: Sequence[Camera],
        outputs: Sequence[Output],
        dtype: OutputType = "float32",
    ) -> dict[str, Tensor]:
        """Every camera in every world, [nworld, ncam, H, W, ...].

        xpos [nworld, nbody, 3] m and xquat [nworld, nbody, 4] wxyz: of MuJoCo's bodies; cameras of one size, world
        frame, no distortion. As `BatchRenderer.render`; in the segmentation the splat's body is "background".
        """
        poses = np.concatenate([np.asarray(xpos, np.float32), np.asarray(xquat, np.float32)], -1)
        if poses.ndim != 3 or poses.shape[1:] != (self._nbody, 7):
            raise UsageError(f"xpos is [nworld, {self._nbody}, 3] and xquat [nworld, {self._nbody}, 4].")
        images = self.renderer.render(poses, batch_cameras(cameras), outputs, dtype, meshes=self.meshes)
        if "segmentation" in images:
            who = images["segmentation"]
            images["segmentation"] = torch.where(who == 0, self._background, who)
        return images


def batch_cameras(cameras: Sequence[Camera]) -> BatchCameras:
    """Cameras of one size for all worlds; UsageError for several sizes, none, or a distorted one."""
    sizes = {(camera.width, camera.height) for camera in cameras}
    if len(sizes) != 1:
        raise UsageError(f"Cameras that are drawn together have one size, received {sorted(sizes)}.")
    for camera in cameras:
        if np.any(np.asarray(camera.distortion)):
            raise UsageError(f"Camera {camera.name!r} has distortion {camera.distortion}: give its undistorted one.")
    (width, height) = sizes.pop()
    viewmats: NDArray[np.float64] = np.stack([camera.viewmat for camera in cameras])
    return BatchCameras(viewmats, np.stack([camera.K for camera in cameras]), width, height)


def _mode(bundle: Bundle) -> Any:
    return bundle.data.get("splat", {}).get("rasterize_mode", "classic")
