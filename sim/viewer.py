# SPDX-License-Identifier: Apache-2.0
"""A bundle in the browser (viser): Gaussians, visual mesh, colliders, cameras, support, and what moves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BackendError, UsageError
from real2sim.sim.body_meshes import BodyMesh, geom_mesh
from real2sim.sim.bundle import read_bundle
from real2sim.sim.drop import add_balls, scatter
from real2sim.sim.mjcf import COLLISION_GROUP, VISUAL_GROUP
from real2sim.sim.render.splat import Splat
from real2sim.sim.scene import Scene, compile_model
from real2sim.sim.transforms import matrix_to_quat, quat_to_matrix
from real2sim.sim.views import best_camera, view_centre

FPS = 30
Y00 = 0.5 / np.sqrt(np.pi)  # the constant spherical harmonic
STEP_BACK = 1.3  # times the camera's distance
THUMBNAIL = 320  # px, the long side of a photo in its frustum
SPLAT, VISUAL, COLLIDERS, CAMERAS, SUPPORT, AXES = "Gaussians", "Visual mesh", "Colliders", "Cameras", "Support", "Axes"
SHOWN = (SPLAT, CAMERAS)


class Viewer:
    """One scene in one viser server. Layers are switched in the browser; a click on a camera looks through it."""

    def __init__(self, scene: Scene, server: Any) -> None:
        self.scene, self.server = scene, server
        self.playing = True
        self._layers: dict[str, list[Any]] = {name: [] for name in (SPLAT, VISUAL, COLLIDERS, CAMERAS, SUPPORT, AXES)}
        self._bodies: dict[int, Any] = {}
        self._size = float(scene.model.stat.extent)
        server.scene.set_up_direction("+z")
        self._start_at_a_camera()
        self._add_bodies()
        self._add_splat()
        self._add_cameras()
        self._add_support()
        self._add_controls()

    def advance(self) -> None:
        """Step 1/FPS seconds of simulated time and move what moved."""
        self.scene.step(max(1, round(1 / FPS / float(self.scene.model.opt.timestep))))
        self._place()

    def run(self) -> None:
        """Step at real time until the process is interrupted."""
        while True:
            began = time.monotonic()
            if self.playing and self.scene.model.nv:
                self.advance()
            time.sleep(max(0.001, 1 / FPS - (time.monotonic() - began)))

    def _start_at_a_camera(self) -> None:
        """A new browser looks at what the capture looked at, from a step behind one of its cameras."""
        cameras, support = list(self.scene.cameras.values()), self.scene.bundle.support
        centre = view_centre(cameras, support)
        start = self.server.initial_camera
        start.position = centre + STEP_BACK * (best_camera(cameras, support).centre - centre)
        start.look_at = centre

    def _add_splat(self) -> None:
        splat = self.scene.background
        handle = self.server.scene.add_gaussian_splats(
            "/splat", splat.means, covariances(splat), base_colours(splat), splat.opacities[:, None]
        )
        self._layers[SPLAT].append(handle)
        for body, part in self.scene.objects.items():
            handle = self.server.scene.add_gaussian_splats(
                f"/bodies/{body}/splat", part.means, covariances(part), base_colours(part), part.opacities[:, None]
            )
            self._layers[SPLAT].append(handle)

    def _add_bodies(self) -> None:
        model = self.scene.model
        for body in range(model.nbody):
            frame = self.server.scene.add_frame(f"/bodies/{body}", show_axes=False)
            self._bodies[body] = frame
        for geom in range(model.ngeom):
            layer = {COLLISION_GROUP: COLLIDERS, VISUAL_GROUP: VISUAL}.get(int(model.geom_group[geom]))
            mesh = geom_mesh(model, geom)
            handle = self.server.scene.add_mesh_simple(
                f"/bodies/{mesh.body}/geom_{geom}", mesh.vertices, mesh.faces, color=geom_colour(mesh),
                opacity=0.6 if layer == COLLIDERS else None, flat_shading=layer == COLLIDERS, side="double",
            )  # fmt: skip
            if layer:
                self._layers[layer].append(handle)
        self._place()

    def _place(self) -> None:
        data = self.scene.data
        with self.server.atomic():
            for body, frame in self._bodies.items():
                frame.position, frame.wxyz = data.xpos[body], data.xquat[body]

    def _add_cameras(self) -> None:
        for camera in self.scene.cameras.values():
            photo = self._photo(camera.image)
            position, wxyz = camera.centre, matrix_to_quat(camera.T_world_cam[:3, :3])
            handle = self.server.scene.add_camera_frustum(
                f"/cameras/{camera.name}", float(2 * np.arctan2(camera.height / 2, camera.K[1, 1])),
                camera.width / camera.height, scale=0.03 * self._size, image=photo, position=position, wxyz=wxyz,
                color=(200, 120, 40) if camera.heldout else (60, 60, 60),
            )  # fmt: skip
            handle.on_click(lambda event, position=position, wxyz=wxyz: look_through(event.client, position, wxyz))
            self._layers[CAMERAS].append(handle)

    def _photo(self, image: str | None) -> NDArray[np.uint8] | None:
        if image is None:
            return None
        from PIL import Image

        with Image.open(self.scene.bundle.path(image)) as photo:
            photo.thumbnail((THUMBNAIL, THUMBNAIL))
            return np.asarray(photo.convert("RGB"))

    def _add_support(self) -> None:
        axes = self.server.scene.add_frame("/axes", axes_length=0.1 * self._size, axes_radius=0.002 * self._size)
        self._layers[AXES].append(axes)
        support = self.scene.bundle.support
        if support is None:
            return
        polygon = np.asarray(support["polygon"], np.float64)
        corners = np.column_stack([polygon, np.full(len(polygon), support["height"])])
        segments = np.stack([corners, np.roll(corners, -1, 0)], axis=1)
        lines = self.server.scene.add_line_segments("/support", segments, (255, 140, 0), thickness=0.003 * self._size)
        self._layers[SUPPORT].append(lines)

    def _add_controls(self) -> None:
        gui = self.server.gui
        gui.add_markdown(f"**{self.scene.bundle.name}** · {len(self.scene.splat):,} Gaussians")
        for name, handles in self._layers.items():
            if handles:
                self._add_switch(name, handles)
        if self.scene.model.nv:
            play = gui.add_checkbox("Physics", True)
            play.on_update(lambda _: setattr(self, "playing", play.value))
            gui.add_button("Reset").on_click(lambda _: self.reset())

    def _add_switch(self, name: str, handles: list[Any]) -> None:
        box = self.server.gui.add_checkbox(name, name in SHOWN)

        def switch(_: Any) -> None:
            for handle in handles:
                handle.visible = box.value

        box.on_update(switch)
        switch(None)

    def reset(self) -> None:
        """Everything back where the bundle has it."""
        self.scene.reset()
        self._place()


def open_viewer(bundle: str | Path, *, drop: int = 0, host: str = "127.0.0.1", port: int = 8080) -> Viewer:
    """Serve a bundle at http://host:port; `drop` spheres fall into it. Call `.run()` to step it in real time.

    Raises BackendError without viser, UsageError where the port is taken, BundleError for what is not a sound bundle.
    """
    try:
        import viser
    except ImportError as error:
        raise BackendError("The viewer needs viser. Install it: pip install 'real2sim[view]'.") from error
    _check_address(host, port)
    read = read_bundle(bundle)
    balls = scatter(read, drop, seed=0)
    model = compile_model(read, edit=lambda spec: add_balls(spec, balls))
    return Viewer(Scene(read, model), viser.ViserServer(host=host, port=port, verbose=False))


def _check_address(host: str, port: int) -> None:
    """Raise UsageError where nothing can be served at an address: viser fails in a thread, or takes another port."""
    import socket

    if not 1 <= port <= 65535:
        raise UsageError(f"--port {port}: a port is 1 to 65535.")
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise UsageError(
            f"--port {port}: nothing can be served there on {host} ({error.strerror or error}). Give another --port or"
            " --host."
        ) from error


def covariances(splat: Splat) -> NDArray[np.float32]:
    """R S S^T R^T of each Gaussian [N, 3, 3], in the splat's unit squared."""
    axes = quat_to_matrix(splat.quats.astype(np.float64)) * splat.scales[:, None, :]
    return (axes @ axes.transpose(0, 2, 1)).astype(np.float32)


def base_colours(splat: Splat) -> NDArray[np.float32]:
    """RGB [N, 3] in 0..1 without the view-dependent harmonics, which viser does not draw."""
    return np.clip(0.5 + Y00 * splat.sh0[:, 0], 0, 1)


def geom_colour(mesh: BodyMesh) -> tuple[int, int, int]:
    """One RGB for a mesh, 0 to 255: geoms carry a single colour."""
    r, g, b = (255 * (mesh.colours[0] if mesh.colours is not None else np.full(3, 0.5))).astype(int).tolist()
    return r, g, b


def look_through(client: Any, position: NDArray[np.float64], wxyz: Sequence[float]) -> None:
    """Put a browser's camera where a photo was taken."""
    with client.atomic():
        client.camera.wxyz, client.camera.position = wxyz, position
