# SPDX-License-Identifier: Apache-2.0
"""Everything that the earlier stages made, as one bundle: written, verified in the simulator, and only then indexed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import real2sim
from real2sim.errors import BundleError
from real2sim.sim.bundle import Bundle, write_index
from real2sim.sim.cameras import Camera, read_cameras, write_cameras
from real2sim.sim.mjcf import Mesh, StaticScene, scene_xml, usable_inertia
from real2sim.sim.obj import write_obj
from real2sim.sim.render.splat import Splat, concatenate
from real2sim.sim.scene import compile_model
from real2sim.sim.transforms import Similarity
from real2sim.stages import verify
from real2sim.stages.bundle_objects import load_parts, object_entry, write_object
from real2sim.stages.bundle_pictures import write_pictures
from real2sim.stages.contract import Progress, Result
from real2sim.stages.report import write_report

VERSION = "1"
ASSET = "assets/background"
TORSIONAL, ROLLING = 0.005, 0.0001  # [m], MuJoCo's own defaults


@dataclass(frozen=True)
class Config(verify.Limits):
    """The bundle's options, and the thresholds of its gates."""

    friction: float = 0.6  # sliding friction of the background [-]
    friction_low: float = 0.3  # range to randomise over [-]
    friction_high: float = 1.0
    friction_source: str = "assumed: dry contact of common household materials, not measured"
    visual_mesh: bool = True  # put the visual mesh into scene.xml too


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Write out/bundle, and out/pictures for the report.

    inputs: ingest, sfm, scale, splat, align, mesh, collision, prune and, for movable objects, objects and background:
    artifacts; provenance: a JSON file with name,
    capture_digest, allowed, and stages [{stage, key, version, backend, config, gates}].
    """
    root = out / "bundle"
    (root / ASSET).mkdir(parents=True)
    provenance = json.loads(inputs["provenance"].read_text())
    alignment = json.loads((inputs["align"] / "alignment.json").read_text())
    T_world_sfm = Similarity.from_json(alignment["T_world_sfm"])
    parts_sfm, objects = load_parts(inputs)
    whole = concatenate(parts_sfm)
    splat = whole.transformed(T_world_sfm)
    parts_sfm[0].transformed(T_world_sfm).save(root / ASSET / "splat.ply")
    cameras = write_frames(inputs["ingest"], inputs["sfm"], T_world_sfm, root)
    parts, notes = copy_parts(inputs["collision"], root)
    colour = write_visual(inputs["mesh"] / "background.ply", root / ASSET / "visual.obj")
    write_json(root / ASSET / "asset.json", asset_json(config, notes))
    bodies = [
        write_object(row, part.transformed(T_world_sfm), inputs, root) for row, part in zip(objects, parts_sfm[1:])
    ]
    scene = static_scene(config, inputs["collision"], root, parts, colour, cameras)
    scene.bodies = bodies
    name = safe_name(provenance["name"])
    (root / "scene.xml").write_text(scene_xml(name, scene), encoding="utf-8")

    before = verify.heldout_psnr(whole, read_cameras(inputs["sfm"] / "cameras.json"), inputs["sfm"])
    data = index(name, alignment, provenance, [mesh.file for mesh in parts], splat.sh_degree, before)
    data["assets"] += [object_entry(body) for body in bodies]
    data["limits"] = {field.name: getattr(config, field.name) for field in fields(verify.Limits)}
    draft = Bundle(root, data)
    own = verify.gates(draft, splat, progress, config)
    data["gates"] += [gate.to_json() for gate in own]
    write_page(draft, splat, inputs, provenance, config, out, progress)
    bundle = write_index(root, data)
    size = sum(entry["size"] for entry in bundle.data["files"].values())
    metrics = {
        "digest": bundle.data["digest"],
        "megabytes": round(size / 1e6, 1),
        "gaussians": len(splat),
        "objects": len(bodies),
        "collision_parts": len(parts),
        "heldout_psnr": float(np.mean(list(before.values()))) if before else None,
    }
    return Result(metrics, own, backend="mujoco", notes=notes)


def write_page(
    draft: Bundle,
    splat: Splat,
    inputs: Mapping[str, Path],
    provenance: dict[str, Any],
    config: Config,
    out: Path,
    progress: Progress,
) -> None:
    """Write out/pictures and the bundle's own report.html: what a run's report says, without times and memory."""
    pictures = out / "pictures"
    pictures.mkdir()
    try:
        model = compile_model(draft)
    except BundleError:
        progress.log("bundle: MuJoCo cannot compile the scene, so there are no pictures of it.")
    else:
        write_pictures(draft, model, splat, config, pictures, progress)
    artifacts = {name: path for name, path in inputs.items() if path.is_dir()} | {"bundle": out}
    gates, heldout = draft.gates, draft.data["splat"]["heldout_psnr"]
    refused = [gate.name for gate in gates if not gate.passed and gate.name not in provenance["allowed"]]
    summary = {
        "outcome": "refused" if refused else "good",
        "allowed": provenance["allowed"],
        "gaussians": len(splat),
        "psnr_heldout": float(np.mean(list(heldout.values()))) if heldout else None,
    }
    write_report(
        draft.root / "report.html",
        title=draft.name,
        manifests=provenance["stages"],
        artifacts=artifacts,
        gates=gates,
        summary=summary,
    )


def safe_name(name: str) -> str:
    """A bundle's name: letters, digits, and `_ . -`, at most 128 of them."""
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:128]
    return cleaned or "scene"


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_frames(ingest: Path, sfm: Path, T_world_sfm: Similarity, root: Path) -> list[Camera]:
    """Write cameras.json (world frame, undistorted) and the held-out photos with their masks; returns the cameras.

    Each row also has capture_path, the file that the frame came from.
    """
    sources = {
        frame["name"]: frame["capture_path"] for frame in json.loads((ingest / "frames.json").read_text())["frames"]
    }
    cameras = []
    for camera in read_cameras(sfm / "cameras.json"):
        moved = camera.transformed(T_world_sfm)
        for kind, folder in (("image", "frames"), ("mask", "frames/masks"), ("depth", None)):
            source, target = getattr(camera, kind), None
            if source is not None and camera.heldout and folder is not None:
                target = f"{folder}/{camera.name}{Path(source).suffix}"
                (root / folder).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(sfm / source, root / target)
            setattr(moved, kind, target)
        cameras.append(moved)
    write_cameras(root / "cameras.json", cameras, "world")
    written = json.loads((root / "cameras.json").read_text())
    for row in written["cameras"]:
        row["capture_path"] = sources.get(row["name"])
    write_json(root / "cameras.json", written)
    return cameras


def copy_parts(collision: Path, root: Path) -> tuple[list[Mesh], list[str]]:
    """Copy the convex parts that MuJoCo can use; returns them, and a note for each that is left out or special."""
    meshes, notes = [], []
    for k, part in enumerate(json.loads((collision / "collision.json").read_text())["parts"]):
        inertia, why = usable_inertia(collision / part["file"], collides=True)
        if inertia is None:
            notes.append(f"Collision part {part['file']} is left out: {why}.")
            continue
        if why:
            notes.append(f"Collision part {part['file']} is taken as a shell: {why}.")
        file = f"{ASSET}/collision_{k}.obj"
        shutil.copyfile(collision / part["file"], root / file)
        meshes.append(Mesh(f"collision_{k}", file, inertia))
    return meshes, notes


def write_visual(mesh: Path, target: Path) -> NDArray[np.float64]:
    """Write the mesh as OBJ with vertex colours; returns its mean colour [3] in 0..1."""
    import trimesh

    surface: Any = trimesh.load(mesh, process=False, force="mesh")
    colours = np.asarray(surface.visual.vertex_colors, np.float64)[:, :3] / 255
    write_obj(target, surface.vertices, surface.faces, colours)
    return colours.mean(0) if len(colours) else np.full(3, 0.6)


def asset_json(config: Config, notes: list[str]) -> dict[str, Any]:
    """What is known of the background as a body: it never moves, so mass, centre and inertia do not apply."""
    friction = {
        "value": config.friction,
        "low": config.friction_low,
        "high": config.friction_high,
        "source": config.friction_source,
    }
    return {
        "name": "background",
        "static": True,
        "mass": None,
        "com": None,
        "inertia": None,
        "friction": friction,
        "notes": notes,
    }


def static_scene(
    config: Config, collision: Path, root: Path, parts: list[Mesh], colour: NDArray[np.float64], cameras: list[Camera]
) -> StaticScene:
    """The scene's content for scene.xml."""
    found = json.loads((collision / "collision.json").read_text())
    visual = None
    if config.visual_mesh:
        inertia, _ = usable_inertia(root / ASSET / "visual.obj", collides=False)
        visual = Mesh("visual", f"{ASSET}/visual.obj", inertia) if inertia else None
    points = np.stack([camera.centre for camera in cameras])
    return StaticScene(
        slab=found["support"] if found["support"]["kind"] == "slab" else None,
        parts=parts,
        visual=visual,
        colour=colour,
        friction=(config.friction, TORSIONAL, ROLLING),
        cameras=cameras,
        extent=float(np.linalg.norm(np.ptp(points, axis=0))) or 1.0,
    )


def index(
    name: str,
    alignment: dict[str, Any],
    provenance: dict[str, Any],
    parts: list[str],
    sh_degree: int,
    heldout_psnr: dict[str, float],
) -> dict[str, Any]:
    """bundle.json without its list of files and its own gates."""
    stages = provenance["stages"]
    return {
        "schema": 1,
        "name": name,
        "created_by": f"real2sim {real2sim.__version__}",
        "units": {"length": "m", "mass": "kg", "time": "s", "angle": "rad"},
        "frames": {"world": "z up", "camera": "opencv", "quaternion": "wxyz"},
        "alignment": {
            "T_world_sfm": alignment["T_world_sfm"],
            "sources": alignment["sources"],
            "support": alignment["support"] if alignment["has_support"] else None,
        },
        "assets": [
            {
                "name": "background",
                "static": True,
                "splat": f"{ASSET}/splat.ply",
                "mesh": f"{ASSET}/visual.obj",
                "collision": parts,
                "asset": f"{ASSET}/asset.json",
            }
        ],
        "robots": [],
        "semantics": None,
        "cameras": "cameras.json",
        "scene": "scene.xml",
        "splat": {"rasterize_mode": "classic", "sh_degree": sh_degree, "heldout_psnr": heldout_psnr},
        "gates": [gate for stage in stages for gate in stage["gates"]],
        "allowed": provenance["allowed"],
        "provenance": {
            "capture_digest": provenance["capture_digest"],
            "stages": [{k: v for k, v in stage.items() if k != "gates"} for stage in stages],
        },
        "licences": [],
    }
