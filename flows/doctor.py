# SPDX-License-Identifier: Apache-2.0
"""What works on this machine, found by doing it: an import that succeeds proves nothing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

State = Literal["works", "absent", "broken"]
LEAST_MEMORY, LEAST_DISK = 3e9, 1e9  # bytes: a scene of 40 small photos takes 1.3 and 0.3
SERVER_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Finding:
    """One probe. needed: without it the whole path does not run; advice: what to do where it does not work."""

    name: str
    state: State
    what: str
    needed: bool
    advice: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.state == "works" or not self.needed

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Absent(Exception):
    """What a probe needs is not installed or not set up."""


@dataclass(frozen=True)
class _Probe:
    name: str
    needed: bool
    run: Callable[[Path], str]
    advice: str


def diagnose(place: Path, started: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """Try each thing that the pipeline uses. place: the folder whose disk runs will be written to."""
    for probe in PROBES:
        started(probe.name)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="real2sim-doctor-") as work:
            try:
                what, state = probe.run(place if probe.name == "disk" else Path(work)), "works"
            except _Absent as error:
                what, state = str(error), "absent"
            except Exception as error:  # a probe exists to fail: whatever it meets is its finding
                what, state = f"{type(error).__name__}: {str(error).strip()[:300]}", "broken"
        advice = "" if state == "works" else probe.advice
        yield Finding(probe.name, state, what, probe.needed, advice, round(time.perf_counter() - start, 2))  # type: ignore[arg-type]


def _machine(_: Path) -> str:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {cpus} processors"


def _memory(_: Path) -> str:
    from real2sim.stages.splat_memory import available_bytes

    free = available_bytes("cpu")
    if free < LEAST_MEMORY:
        raise MemoryError(f"{free / 1e9:.1f} GB free; {LEAST_MEMORY / 1e9:.0f} GB are comfortable")
    return f"{free / 1e9:.1f} GB free"


def _disk(place: Path) -> str:
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < LEAST_DISK:
        raise OSError(f"{free / 1e9:.1f} GB free at {place}; {LEAST_DISK / 1e9:.0f} GB are comfortable")
    probe = place / f".real2sim-doctor-{os.getpid()}"
    probe.write_text("x")
    probe.unlink()
    return f"{free / 1e9:.0f} GB free at {place}, writable"


def _gaussian(backend: str) -> str:
    import torch

    from real2sim.sim.render.rasterize import rasterize

    device = "cuda" if backend == "gsplat" else "cpu"
    rows: list[Any] = [[[0.0, 0, 2]], [[1.0, 0, 0, 0]], [[0.2, 0.2, 0.2]], [0.9], [[[1.0, 0, 0]]]]
    gaussian = [torch.tensor(row, device=device) for row in rows]
    view = torch.eye(4, device=device)[None]
    K = torch.tensor([[[30.0, 0, 16], [0, 30, 16], [0, 0, 1]]], device=device)
    start = time.perf_counter()
    _, depth, alpha = rasterize(*gaussian, view, K, 32, 32, sh_degree=0, backend=backend)  # type: ignore[arg-type]
    centre = (float(alpha[0, 16, 16]), float(depth[0, 16, 16]))
    if not (centre[0] > 0.5 and abs(centre[1] - 2) < 0.05):
        raise ValueError(f"one Gaussian at 2 m came out with alpha {centre[0]:.2f} and depth {centre[1]:.2f}")
    return f"drew one Gaussian in {1e3 * (time.perf_counter() - start):.0f} ms"


def _cpu_rasteriser(_: Path) -> str:
    return _gaussian("cpu")


def _gpu(_: Path) -> str:
    import torch

    if not torch.cuda.is_available():
        raise _Absent(f"no CUDA device for PyTorch {torch.__version__}")
    free, total = torch.cuda.mem_get_info()
    torch.ones(8, device="cuda").sum().item()
    return f"{torch.cuda.get_device_name()}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"


def _gsplat(_: Path) -> str:
    import torch

    if find_spec("gsplat") is None:
        raise _Absent("gsplat is not installed")
    if not torch.cuda.is_available():
        raise _Absent("gsplat needs a CUDA device")
    return _gaussian("gsplat")


def _sfm(work: Path) -> str:
    """Four views of a textured wall: features, matches, verified pairs."""
    if find_spec("pycolmap") is None:
        raise _Absent("pycolmap is not installed")
    import cv2
    import numpy as np

    rng = np.random.default_rng(0)
    wall = cv2.resize(rng.integers(0, 255, (60, 80, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
    (work / "images").mkdir()
    corners = np.array([[0, 0], [320, 0], [320, 240], [0, 240]], np.float32)
    for k in range(4):
        source = corners + np.array([[20 * k, 5 * k], [60, 12 * k], [50 + 4 * k, 60], [10 * k, 40]], np.float32)
        view = cv2.warpPerspective(wall, cv2.getPerspectiveTransform(source, corners), (320, 240))
        cv2.imwrite(str(work / "images" / f"{k}.png"), view)
    import pycolmap

    from real2sim.stages.sfm_database import quiet_log, read_statistics

    with quiet_log(work):
        pycolmap.extract_features(work / "d.db", work / "images", device=pycolmap.Device.cpu)
        pycolmap.match_exhaustive(work / "d.db", device=pycolmap.Device.cpu)
        pairs = read_statistics(work / "d.db").inliers
    if len(pairs) < 3:
        raise ValueError(f"only {len(pairs)} of 6 pairs of a textured wall match")
    return f"pycolmap {pycolmap.__version__}: {len(pairs)} of 6 pairs of four small images match"


def _simulator(_: Path) -> str:
    import mujoco

    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom type='plane' size='1 1 .1'/><body pos='0 0 .2'><freejoint/><geom size='.05'/></body>"
        "</worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, nstep=1000)
    if abs(data.qpos[2] - 0.05) > 0.005:
        raise ValueError(f"a ball dropped on a plane rests at {data.qpos[2]:.3f} m, not 0.05 m")
    return f"MuJoCo {mujoco.__version__}: a ball came to rest on a plane"


def _convex(_: Path) -> str:
    if find_spec("coacd") is None:
        raise _Absent("coacd is not installed")
    import coacd
    import trimesh

    coacd.set_log_level("error")
    box = trimesh.creation.box()
    parts = coacd.run_coacd(coacd.Mesh(box.vertices, box.faces))
    return f"coacd: a box is {len(parts)} convex part"


def _video(work: Path) -> str:
    if find_spec("imageio_ffmpeg") is None:
        raise _Absent("imageio-ffmpeg is not installed")
    import cv2
    import imageio_ffmpeg
    import numpy as np

    film = work / "film.mp4"
    frames = np.zeros((5, 64, 64, 3), np.uint8).tobytes()
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "64x64", "-r", "5", "-i", "-"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *raw, "-c:v", "libx264", str(film)]
    subprocess.run(command, input=frames, check=True, capture_output=True)
    reader = cv2.VideoCapture(str(film))
    if not reader.read()[0]:
        raise ValueError("OpenCV cannot read the H.264 film that FFmpeg wrote")
    return "wrote and read an H.264 film"


def _prefect(_: Path) -> str:
    if find_spec("prefect") is None:
        raise _Absent("Prefect is not installed")
    from importlib.metadata import version

    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return f"Prefect {version('prefect')}; PREFECT_API_URL is not set, so each run starts a server of its own"
    with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=SERVER_TIMEOUT_S) as answer:
        healthy = json.loads(answer.read())
    return f"Prefect {version('prefect')}; the server at {url} says {healthy}"


PROBES = (
    _Probe("machine", True, _machine, ""),
    _Probe("memory", False, _memory, "Close other programs, or use fewer and smaller photos."),
    _Probe("disk", True, _disk, "Free some space, or give another folder by --out and --store."),
    _Probe("sfm", True, _sfm, "pip install 'real2sim[reconstruct]'"),
    _Probe("rasteriser, CPU", True, _cpu_rasteriser, "Build it again: pip install --force-reinstall real2sim"),
    _Probe("GPU", False, _gpu, "Without one everything runs on the CPU, slower. Else install a CUDA build of PyTorch."),
    _Probe("rasteriser, gsplat", False, _gsplat, "On a machine with a GPU: pip install 'real2sim[gpu]' (needs nvcc)."),
    _Probe("simulator", True, _simulator, "pip install 'mujoco>=4.0,<5'"),
    _Probe("convex parts", True, _convex, "pip install 'real2sim[reconstruct]'"),
    _Probe("video", False, _video, "pip install 'real2sim[video]'; photos work without it."),
    _Probe(
        "Prefect", False, _prefect, "pip install 'real2sim[prefect]', or start the server; --prefect needs it only."
    ),
)
