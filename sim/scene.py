# SPDX-License-Identifier: Apache-2.0
"""A bundle in the simulator: MuJoCo steps it, the splat and what moves in it are rendered together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BundleError, UsageError
from real2sim.sim.bundle import Bundle, read_bundle
from real2sim.sim.cameras import Camera
from real2sim.sim.composite import geom_colours, over, shade
from real2sim.sim.raycast import COLLISION_GROUPS, Hits, cast
from real2sim.sim.render.splat import Splat, concatenate
from real2sim.sim.transforms import Similarity

Output = Literal["rgb", "depth", "segmentation"]
OPAQUE = 0.5  # a pixel belongs to the background where the splat covers more than this


class Scene:
    """One bundle, loaded: `model` and `data` are MuJoCo's own; `splat` is drawn with its objects where they are now.

    splat: all Gaussians as `Bundle.splat` gives them. Those of an object move with its body, their harmonics turned.
    """

    def __init__(self, bundle: Bundle, model: Any, splat: Splat) -> None:
        import mujoco

        self.bundle, self.model = bundle, model
        self.data = mujoco.MjData(model)
        self.objects = {self._body(name): part for name, part in bundle.object_splats().items()}
        moving = sum(len(part) for part in self.objects.values())
        self.background = splat.select(slice(0, len(splat) - moving)) if moving else splat
        self._seen = without_visuals(model, list(self.objects))
        self.cameras = {camera.name: camera for camera in bundle.cameras()}
        mujoco.mj_forward(model, self.data)

    @property
    def splat(self) -> Splat:
        """All Gaussians at the present state, world frame: the background's, then each object's."""
        placed = [part.transformed(self.pose(body)) for body, part in self.objects.items()]
        return concatenate([self.background, *placed])

    def pose(self, body: int) -> Similarity:
        """T_world_body of a MuJoCo body now."""
        rotation = self.data.xmat[body].reshape(3, 3).copy()
        return Similarity(1.0, rotation, self.data.xpos[body].copy())

    def _body(self, name: str) -> int:
        import mujoco

        body = int(mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, name))
        if body < 0:
            raise BundleError(
                f"{self.bundle.scene}: has no body {name!r}, though the bundle has an asset of that name."
            )
        return body

    @property
    def ctrl(self) -> NDArray[np.float64]:
        """Actuator commands [nu], shared with MuJoCo."""
        return self.data.ctrl

    def step(self, n: int = 1) -> None:
        """Advance by n time steps."""
        import mujoco

        mujoco.mj_step(self.model, self.data, n)

    def reset(self) -> None:
        """Back to the state that the model was compiled with."""
        import mujoco

        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_forward(self.model, self.data)

    def camera(self, which: str | int | Camera) -> Camera:
        """A camera of the capture by name or by its place in cameras.json, or the camera that is given."""
        if isinstance(which, Camera):
            return which
        names = list(self.cameras)
        if isinstance(which, str) and which in self.cameras:
            return self.cameras[which]
        if isinstance(which, int) and -len(names) <= which < len(names):
            return self.cameras[names[which]]
        some = ", ".join(names[:5])
        raise UsageError(
            f"{which!r} is not a camera of {self.bundle.root}: it has {len(names)} ({some}, …), or give a Camera."
        )

    def render(
        self, camera: str | int | Camera, outputs: Sequence[Output] = ("rgb", "depth", "segmentation")
    ) -> dict[str, NDArray[Any]]:
        """Render the splat with the moving geoms in it, each pixel in depth order.

        camera: a name, an index, or a Camera (world frame, no distortion); its size is the picture's.
        Returns "rgb" float32 [H, W, 3] in 0..1; "depth" float32 [H, W] z [m], 0 where nothing is; "segmentation" int32
        [H, W]: MuJoCo body ids, that of "background" for the splat, -1 where nothing is.
        """
        from real2sim.sim.render.rasterize import render

        unknown = set(outputs) - set(get_args(Output))
        if unknown:
            raise UsageError(f"Outputs are {', '.join(get_args(Output))}; got {', '.join(sorted(unknown))}.")
        view = self.camera(camera)
        splat = self.splat
        hits = cast(self._seen, self.data, view, static=False)
        front = render(splat, view, depth_limit=hits.depth)
        rgb, depth, alpha = over(front, shade(hits, view, geom_colours(self.model)), hits.depth)
        result = {
            "rgb": rgb,
            "depth": depth,
            "segmentation": self._segmentation(hits, front["alpha"], alpha, splat, view),
        }
        return {name: result[name] for name in outputs}

    def _segmentation(
        self, hits: Hits, front: NDArray[Any], alpha: NDArray[Any], splat: Splat, view: Camera
    ) -> NDArray[np.int32]:
        import mujoco

        background: Any = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, "background")
        if self.objects:
            from real2sim.sim.render.rasterize import top_gaussian

            counts = [len(self.background), *(len(part) for part in self.objects.values())]
            background = np.repeat([background, *self.objects], counts)[top_gaussian(splat, view)]
        body = np.where(hits.geom >= 0, self.model.geom_bodyid[hits.geom], -1)
        seen_through = (hits.geom >= 0) & (front <= OPAQUE)
        return np.where(seen_through, body, np.where(alpha > OPAQUE, background, -1)).astype(np.int32)


def without_visuals(model: Any, bodies: Sequence[int]) -> Any:
    """The model for rays: bodies that Gaussians draw have no visible geoms in it."""
    import copy

    if not bodies:
        return model
    seen = copy.copy(model)
    drawn = np.isin(seen.geom_bodyid, bodies)
    seen.geom_group[drawn] = COLLISION_GROUPS[0]
    return seen


def load(
    bundle: str | Path,
    robot: str | Path | None = None,
    nworld: int = 1,
    *,
    edit: Callable[[Any], None] | None = None,
) -> Scene:
    """Load a bundle, after verifying every file of it.

    robot: an MJCF file, attached with its base at the world's origin; its names get the prefix "<model name>/".
    nworld: worlds to step; this engine (MuJoCo) steps one. edit(spec): changes the mujoco.MjSpec before it is compiled,
    to add objects. Raises BundleError for what is not a sound bundle.
    """
    if nworld != 1:
        raise UsageError(f"nworld={nworld}: MuJoCo, the engine of this version, steps one world. Use nworld=1.")
    read = read_bundle(bundle)
    return Scene(read, compile_model(read, robot, edit), read.splat())


def compile_model(bundle: Bundle, robot: str | Path | None = None, edit: Callable[[Any], None] | None = None) -> Any:
    """The bundle's scene.xml as a mujoco.MjModel, with a robot and edits; BundleError where it does not compile."""
    import mujoco

    try:
        spec = mujoco.MjSpec.from_file(str(bundle.scene))
    except ValueError as error:
        raise BundleError(f"{bundle.scene}: MuJoCo cannot read it: {error}") from error
    if robot is not None:
        _attach(spec, Path(robot))
    if edit is not None:
        edit(spec)
    try:
        return spec.compile()
    except ValueError as error:
        raise BundleError(f"{bundle.scene}: MuJoCo cannot compile it: {error}") from error


def _attach(spec: Any, robot: Path) -> None:
    """Attach a robot at the world's origin; the integrator becomes the robot's, since its gains were chosen for it."""
    import mujoco

    try:
        arm = mujoco.MjSpec.from_file(str(robot))
    except ValueError as error:
        raise UsageError(f"{robot}: not an MJCF model that MuJoCo reads: {error}") from error
    spec.option.integrator = arm.option.integrator
    spec.attach(arm, frame=spec.worldbody.add_frame(), prefix=f"{arm.modelname}/")
