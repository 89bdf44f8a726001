# SPDX-License-Identifier: Apache-2.0
"""A bundle in the simulator: the physics core (or MuJoCo) steps it, the splat and what moves in it are rendered together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BundleError, UsageError
from real2sim.sim.bundle import Bundle, read_bundle
from real2sim.sim.cameras import Camera
from real2sim.sim.raycast import COLLISION_GROUPS
from real2sim.sim.render.batch import Output, OutputType
from real2sim.sim.render.splat import Splat, concatenate
from real2sim.sim.scene_renderer import SceneRenderer
from real2sim.sim.transforms import Similarity

if TYPE_CHECKING:
    from torch import Tensor

    from real2sim.sim.physics import Batch

Engine = Literal["real2sim", "mujoco"]


def engine_named(name: str) -> Engine:
    """The engine of this name; UsageError for another."""
    for engine in get_args(Engine):
        if name == engine:
            return engine
    raise UsageError(f"engine is one of {', '.join(get_args(Engine))}; got {name!r}.")


class Scene:
    """One bundle, loaded. `splat` holds all Gaussians, world frame, those of an object where its body is now.

    model, data: MuJoCo's own. With engine "mujoco", `data` is the state. With engine "real2sim", `batch`
    (real2sim.sim.physics.Batch) is the state of all worlds, and `data` mirrors its first world for rendering: read it,
    write `batch`.
    """

    def __init__(
        self, bundle: Bundle, model: Any, engine: Engine = "real2sim", nworld: int = 1, nthread: int = 1
    ) -> None:
        import mujoco

        engine_named(engine)
        if engine == "mujoco" and nworld != 1:
            raise UsageError(f"nworld={nworld}: MuJoCo steps one world. Use nworld=1, or engine='real2sim'.")
        self.bundle, self.model, self.engine, self.nworld = bundle, model, engine, nworld
        self.data = mujoco.MjData(model)
        self.background = bundle.background_splat()
        self.objects = {self._body(name): part for name, part in bundle.object_splats().items()}
        self.rays = without_visuals(model, list(self.objects))  # for rays that must meet only what no Gaussians draw
        self._renderer: SceneRenderer | None = None  # made for the first picture, from the splat as it then is
        self.cameras = {camera.name: camera for camera in bundle.cameras()}
        self.batch: Batch | None = None
        mujoco.mj_forward(model, self.data)
        if engine == "real2sim":
            from real2sim.sim.physics import Batch, Model

            core = Model.from_mjmodel(model, source=f"{bundle.scene} (engine='mujoco' steps it)")
            self.batch = Batch(core, nworld=nworld, nthread=nthread)

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
        """Actuator commands [nworld, nu], shared with the engine."""
        return self.data.ctrl[None] if self.batch is None else self.batch.ctrl

    def step(self, n: int = 1) -> None:
        """Advance every world by n time steps."""
        import mujoco

        if self.batch is None:
            mujoco.mj_step(self.model, self.data, n)
        elif n > 0:
            self.batch.step(n)
            self.show(0)

    def reset(self) -> None:
        """Back to the state that the model was compiled with."""
        import mujoco

        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_forward(self.model, self.data)
        if self.batch is not None:
            self.batch.reset()

    def show(self, world: int) -> None:
        """Let `data`, and with it render(), follow one world of the batch in its present state."""
        import mujoco

        if self.batch is None:
            return
        if not 0 <= world < self.nworld:
            raise UsageError(f"world is 0 to {self.nworld - 1}; got {world}.")
        self.data.time = self.batch.time[world, 0]
        for name in ("qpos", "qvel", "act", "ctrl", "sensordata"):
            getattr(self.data, name)[:] = getattr(self.batch, name)[world]
        for name in ("mocap_pos", "mocap_quat"):
            getattr(self.data, name).reshape(-1)[:] = getattr(self.batch, name)[world]
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)

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
        """Render the splat with the bodies that have none of their own in it, each pixel in depth order.

        camera: a name, an index, or a Camera (world frame, no distortion); its size is the picture's.
        Returns "rgb" float32 [H, W, 3] in 0..1; "depth" float32 [H, W] z [m], 0 where nothing is; "segmentation" int32
        [H, W]: the MuJoCo body that most of a pixel shows, "background" for the splat, -1 where nothing is; "alpha"
        [H, W] and "normals" [H, W, 3], camera axes.
        """
        images = self.render_worlds([camera], outputs, self.data.xpos[None], self.data.xquat[None], "float32")
        return {name: images[name][0, 0].numpy() for name in outputs}

    def render_worlds(
        self,
        cameras: Sequence[str | int | Camera],
        outputs: Sequence[Output],
        xpos: Any = None,
        xquat: Any = None,
        dtype: OutputType = "uint8",
    ) -> dict[str, Tensor]:
        """Every camera in every world by one call of the batch renderer: torch [nworld, ncam, H, W, ...].

        xpos [nworld, nbody, 3] m, xquat [nworld, nbody, 4] wxyz: the bodies' poses, by default those of all worlds in
        their present state.
        """
        unknown = set(outputs) - set(get_args(Output))
        if unknown or not outputs:
            raise UsageError(f"Outputs are {', '.join(get_args(Output))}; got {', '.join(sorted(unknown)) or 'none'}.")
        views = [self.camera(camera) for camera in cameras]
        if self._renderer is None:
            self._renderer = SceneRenderer(self.bundle, self.model, self.background, self.objects)
        now: Any = self.data if self.batch is None else self.batch
        if self.batch is not None and (xpos is None or xquat is None):
            self.batch.forward()
        shape = (self.nworld, self.model.nbody, -1)
        xpos = np.reshape(now.xpos, shape) if xpos is None else xpos
        xquat = np.reshape(now.xquat, shape) if xquat is None else xquat
        return self._renderer.render(xpos, xquat, views, outputs, dtype)


def without_visuals(model: Any, bodies: Sequence[int]) -> Any:
    """The model for rays: bodies that Gaussians draw have no visible geoms in it."""
    import copy

    if not bodies:
        return model
    seen = copy.copy(model)
    seen.geom_group[np.isin(seen.geom_bodyid, bodies)] = COLLISION_GROUPS[0]
    return seen


def load(
    bundle: str | Path,
    robot: str | Path | None = None,
    nworld: int = 1,
    *,
    engine: Engine = "real2sim",
    nthread: int = 1,
    edit: Callable[[Any], None] | None = None,
) -> Scene:
    """Load a bundle, after verifying every file of it.

    robot: an MJCF file, attached with its base at the world's origin; its names get the prefix "<model name>/".
    nworld: worlds to step. engine: "real2sim" (the physics core, any number of worlds, on nthread threads) or "mujoco"
    (one world, for comparison). edit(spec): changes the mujoco.MjSpec before it is compiled, to add objects. Raises
    BundleError for what is not a sound bundle, UnsupportedFeature for a robot with an element that the core lacks.
    """
    read = read_bundle(bundle)
    return Scene(read, compile_model(read, robot, edit), engine, nworld, nthread)


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
