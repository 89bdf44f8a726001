# SPDX-License-Identifier: Apache-2.0
"""background: the scene without its objects and the objects without their scene, each complete, fitted together.

What an object hid is filled from photos that saw behind it, and where none did by inpainting the support's own plane.
Then all Gaussians are fitted again at once, so that three pictures come true in every photo: the whole scene, the emptied
one, and who owns which pixel. A Gaussian that served two owners is given to both, and each copy keeps its own part.

Writes background.ply and object_<id>.ply (sfm frame), heldout.json, preview.png.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import Splat, concatenate
from real2sim.sim.transforms import Similarity
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.instances import Instances, read_instances
from real2sim.stages.lift import Owners, agreement, mean_iou
from real2sim.stages.preview import write_png
from real2sim.stages.segment import read_photo
from real2sim.stages.silhouettes import Ids
from real2sim.stages.splat_evaluate import evaluate
from real2sim.stages.splat_gaussians import SH_C0, from_splat, to_splat
from real2sim.stages.splat_loss import photometric_loss
from real2sim.stages.splat_memory import keep_freed_memory
from real2sim.stages.splat_train import Plan, Rates, Trainer
from real2sim.stages.splat_views import depth_anchors, load_views, normalisation, read_points, training_cameras
from real2sim.stages.support_texture import Texture, emptied, grid, support_texture, widened

VERSION = "1"

Array = NDArray[np.float64]

SHARED = 0.15  # of the votes for the runner-up, from which a Gaussian is given to both
SEED_OPACITY = 0.8
RESIDUE_M = 0.012  # from an instance's solid, within which nothing of the background floats [m] ...
RESIDUE_ABOVE_M = 0.006  # ... higher than this above the support [m]
SHADOW_M = 0.012  # around a footprint, where contact shadows are [m]


@dataclass(frozen=True)
class Config:
    """How the background is completed."""

    steps: int = 200
    """Steps of the common fit, one photo each."""
    cell_m: float = 0.002
    """Cell of the support's picture [m]."""
    seed_m: float = 0.007
    """Distance of the Gaussians that close a hole in the support [m]."""
    owner_weight: float = 0.5
    """Weight of the owners' picture in the loss."""
    seed: int = 0

    def __post_init__(self) -> None:
        above_zero(self, "cell_m", "seed_m")
        in_range(self, 0, float("inf"), "steps", "owner_weight")


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Complete and fit; inputs: sfm, splat, align, prune, segment, lift, objects."""
    alignment = json.loads((inputs["align"] / "alignment.json").read_text())
    T_world_sfm = Similarity.from_json(alignment["T_world_sfm"])
    cameras = read_cameras(inputs["sfm"] / "cameras.json")
    world = [c.transformed(T_world_sfm) for c in cameras]
    accepted = json.loads((inputs["objects"] / "objects.json").read_text())["objects"]
    if not accepted:
        shutil.copyfile(inputs["prune"] / "splat.ply", out / "background.ply")
        return Result({"objects": 0}, [], "none", ["No objects, so the background is the whole splat."])
    keep_freed_memory()
    found = only(read_instances(inputs["segment"], world), [row["id"] for row in accepted])
    owners = Owners.load(inputs["lift"] / "owners.npz")
    splat = Splat.load(inputs["prune"] / "splat.ply")
    owners.owner[:] = without_residue(T_world_sfm.apply(splat.means), owners.owner, found)
    splat, owner = shared_out(splat, owners, [row.id for row in found.rows])
    owner[:] = without_residue(T_world_sfm.apply(splat.means), owner, found)
    factor = float(json.loads((inputs["splat"] / "heldout.json").read_text())["data_factor"])
    polygon = np.array(alignment["support"]["polygon"])
    train, heldout, _ = training_cameras(inputs["sfm"])
    photos = [read_photo(inputs["sfm"], c) for c in cameras]
    hidden = [widened(ids) for ids in found.ids]
    closed = footprints(found, polygon, config.cell_m)
    shown = [[column[i] for i in train] for column in (photos, world, hidden)]
    texture = support_texture(shown[0], shown[1], shown[2], polygon, config.cell_m, closed)
    seeds = seed_support(texture, closed, polygon, config.seed_m, splat.sh_degree).transformed(T_world_sfm.inverse())
    splat, owner = concatenate([splat, seeds]), np.concatenate([owner, np.zeros(len(seeds), np.uint8)])
    progress.log(f"background: {len(seeds)} Gaussians close the holes of {len(accepted)} objects; inpainting opencv")

    empties = [emptied(photos[i], world[i], hidden[i], texture, polygon) for i in train]
    fitted = _fit(inputs, splat, owner, train, empties, [found.ids[i] for i in train], factor, config, progress)
    fitted.select(owner == 0).save(out / "background.ply")
    for row in found.rows:
        fitted.select(owner == row.id).save(out / f"object_{row.id}.ply")
    metrics = _judge(inputs["sfm"], fitted, owner, found, cameras, heldout, factor, out)
    empty = [np.clip(render(fitted.select(owner == 0), cameras[i])["rgb"], 0, 1) for i in _spread(len(cameras))]
    write_png(out / "preview.png", [np.round(picture * 255).astype(np.uint8) for picture in empty])
    metrics |= {"objects": len(found.rows), "seeds": len(seeds), "gaussians": len(fitted)}
    metrics["hole_share"] = float((~texture.seen & closed).sum() / max(closed.sum(), 1))
    return Result(metrics, [], "opencv")


def _spread(count: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, 3)})


def only(found: Instances, numbers: Sequence[int]) -> Instances:
    """The instances with these ids; the others' pixels count as background."""
    keep = np.zeros(256, np.uint8)
    keep[list(numbers)] = list(numbers)
    rows = [row for row in found.rows if row.id in numbers]
    return Instances(rows, found.cameras, [keep[ids] for ids in found.ids], {n: found.surfaces[n] for n in numbers})


def without_residue(means_world: Array, owner: NDArray[np.uint8], found: Instances) -> NDArray[np.uint8]:
    """Owners [N] where nothing of the background is left floating at an instance's surface: that would be its halo."""
    from scipy.spatial import cKDTree

    result = owner.copy()
    floating = np.flatnonzero((owner == 0) & (means_world[:, 2] > RESIDUE_ABOVE_M))
    nearest = np.full(len(floating), RESIDUE_M)
    for row in found.rows:
        distance, _ = cKDTree(found.surfaces[row.id][0]).query(means_world[floating])
        closer = distance < nearest
        result[floating[closer]], nearest[closer] = row.id, distance[closer]
    return result


def shared_out(splat: Splat, owners: Owners, numbers: Sequence[int]) -> tuple[Splat, NDArray[np.uint8]]:
    """The splat with a copy of each Gaussian that serves two owners, and all owners [N + copies]; 0 for the background."""
    keep = np.zeros(256, np.uint8)
    keep[list(numbers)] = list(numbers)
    owner, second = keep[owners.owner], keep[owners.second]
    both = np.flatnonzero((owners.second_share > SHARED) & (owner != second))
    return concatenate([splat, splat.select(both)]), np.concatenate([owner, second[both]])


def footprints(found: Instances, polygon: Array, cell: float) -> NDArray[np.bool_]:
    """Cells [H, W] of the support's picture that an instance stands on or shades by its contact."""
    import cv2

    low, points = grid(polygon, cell)
    mask = np.zeros(points.shape[:2], np.uint8)
    for vertices, _ in found.surfaces.values():
        base = vertices[vertices[:, 2] < 0.25 * vertices[:, 2].max(), :2]
        corners = np.round(((base - low) / cell - 0.5) * 16).astype(np.int32)
        cv2.fillConvexPoly(mask, cv2.convexHull(corners), 1, shift=4)
    width = 2 * round(SHADOW_M / cell) + 1
    return np.asarray(cv2.dilate(mask, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (width, width))) > 0)


def seed_support(texture: Texture, closed: NDArray[np.bool_], polygon: Array, spacing: float, sh_degree: int) -> Splat:
    """Flat Gaussians on the plane z = 0 (world frame) over the closed cells, with the picture's colours."""
    step = max(1, round(spacing / texture.cell))
    rows, columns = np.nonzero(closed[step // 2 :: step, step // 2 :: step])
    xy = texture.low + texture.cell * (np.stack([columns, rows], 1) * step + step // 2 + 0.5)
    n = len(xy)
    size = np.log([0.6 * step * texture.cell, 0.6 * step * texture.cell, 0.1 * step * texture.cell])
    return Splat(
        means=np.c_[xy, np.full(n, -0.0005)],
        quats=np.tile([1.0, 0, 0, 0], (n, 1)),
        log_scales=np.tile(size, (n, 1)),
        logit_opacities=np.full(n, np.log(SEED_OPACITY / (1 - SEED_OPACITY))),
        sh0=((texture.at(xy) - 0.5) / SH_C0)[:, None],
        shN=np.zeros((n, (sh_degree + 1) ** 2 - 1, 3)),
    )


class CommonFit(Trainer):
    """A trainer whose Gaussians have owners [N]: whole scene, emptied scene and owners' picture are fitted together."""

    parameters: dict[str, Tensor]
    owner: NDArray[np.uint8]
    empties: list[tuple[Tensor, Tensor]]  # per photo: target [H, W, 3] and which pixels count [H, W]
    codes: list[Tensor]  # per photo: the owners' picture [H, W, 3]
    owner_weight: float

    def _train_step(self) -> None:
        index, share = self._next_view(), self.share_done
        view = self.views.at(index)
        for values in self.parameters.values():
            values.requires_grad_(True)
        rgb, depth, alpha = self._render(view, self.plan.sh_degree)
        loss = photometric_loss(rgb, view.target, view.keep, self.plan.ssim_weight)
        total = loss + self._depth_loss(view, depth, alpha) + self._regularisers()
        whole = self.parameters
        objects = self.step % 2 == 0  # the two parts take turns: each is seen often enough, at half the cost
        part = self.owner > 0 if objects else self.owner == 0
        rows = torch.from_numpy(np.flatnonzero(part))
        self.parameters = {name: values[rows] for name, values in whole.items()}
        if objects:
            self.parameters |= owner_codes(self.owner[part], whole["shN"].shape[1])
            picture, _, _ = self._render(view, 0)
            total = total + 2 * self.owner_weight * (picture - self.codes[index]).abs().mean()
        else:
            picture, _, _ = self._render(view, self.plan.sh_degree)
            target, keep = self.empties[index]
            total = total + 2 * photometric_loss(picture, target, keep, self.plan.ssim_weight)
        self.parameters = whole
        total.backward()  # type: ignore[no-untyped-call]
        self.step += 1
        self._record(loss, rgb, view)
        self._descend(share)


def palette() -> NDArray[np.float32]:
    """Colours [256, 3] that tell owners apart; black is nobody's."""
    import colorsys

    hues = [colorsys.hsv_to_rgb(0.618034 * n % 1, 0.6 + 0.4 * (n % 2), 1.0) for n in range(256)]
    return np.asarray([(0, 0, 0), *hues[1:]], np.float32)


def owner_codes(owner: NDArray[np.uint8], rest: int) -> dict[str, Tensor]:
    """sh0 and shN of Gaussians painted in their owners' colours."""
    sh0 = torch.from_numpy((palette()[owner] - 0.5) / SH_C0)[:, None]
    return {"sh0": sh0, "shN": torch.zeros((len(owner), rest, 3))}


def _fit(
    inputs: Mapping[str, Path], splat: Splat, owner: NDArray[np.uint8], train: list[int],
    empties: list[tuple[NDArray[np.float32], NDArray[np.bool_]]], ids: list[Ids], factor: float, config: Config,
    progress: Progress,
) -> Splat:  # fmt: skip
    """All Gaussians fitted to the training photos, on the CPU's rasteriser."""
    import cv2

    sfm = inputs["sfm"]
    _, _, cameras = training_cameras(sfm)
    points = read_points(sfm).seen_by(train)
    seen = [cameras[i] for i in train]
    T_train_sfm = normalisation(seen, points)
    moved = [c.transformed(T_train_sfm) for c in seen]
    anchors = depth_anchors(points, moved, T_train_sfm)
    views = load_views(sfm, moved, factor=factor, levels=1, device="cpu", anchors=anchors)
    plan = Plan(
        steps=config.steps, cap=len(splat), sh_degree=splat.sh_degree, refine_until=0.0, seed=config.seed,
        rates=Rates(means=2e-4, means_end=2e-5, scales=1e-2, opacities=3e-2),
    )  # fmt: skip
    fit = CommonFit(views, from_splat(splat, T_train_sfm), plan, "cpu")
    fit.owner, fit.owner_weight = owner, config.owner_weight
    fit.empties, fit.codes = [], []
    for index in range(len(train)):
        size = views.at(index).size
        rgb, known = empties[index]
        small = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA)
        keep = cv2.resize(known.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.999
        ours = views.at(index).keep
        usable = torch.from_numpy(keep) if ours is None else torch.from_numpy(keep) & ours
        fit.empties.append((torch.from_numpy(np.ascontiguousarray(small)), usable))
        code = cv2.resize(palette()[ids[index]], size, interpolation=cv2.INTER_AREA)
        fit.codes.append(torch.from_numpy(np.ascontiguousarray(code)))
    fit.run(progress, lambda: None)
    return to_splat(fit.parameters, T_train_sfm)


def _judge(
    sfm: Path, splat: Splat, owner: NDArray[np.uint8], found: Instances, cameras: list[Camera], heldout: list[int],
    factor: float, out: Path,
) -> dict[str, Any]:  # fmt: skip
    """Held-out frames: PSNR of the whole scene, and how the owners' picture agrees with the masks."""
    judged = [cameras[i] for i in heldout]
    scores = evaluate(splat, judged, load_views(sfm, judged, factor=factor, levels=1, device="cpu"), "cpu")
    frames = [agreement(splat, owner, cameras[i], found.ids[i]) for i in heldout]
    (out / "heldout.json").write_text(json.dumps({**scores.to_json(), "masks": frames}, indent=1))
    metrics: dict[str, Any] = {f"iou_{row.label}": mean_iou(frames, row.id) for row in found.rows}
    if scores.frames:
        metrics |= {"psnr": scores.psnr, "ssim": scores.ssim}
    return metrics
