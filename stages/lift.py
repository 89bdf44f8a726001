# SPDX-License-Identifier: Apache-2.0
"""lift: which Gaussian belongs to which instance, by votes of all training photos.

A Gaussian's vote for an instance is its blend weight, alpha times transmittance, summed over the pixels of the instance's
masks. The rasteriser's own gradient gives it exactly: the derivative of the masked picture by the Gaussian's colour.

Writes owners.npz, for the rows of prune's splat: owner [N] uint8 (0: background), share [N] of the votes that the owner
got, second [N] uint8 and second_share [N] of the runner-up; heldout.json: how rendered owners agree with the masks of
photos that had no vote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.render.rasterize import rasterize, render
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.instances import Instances, read_instances
from real2sim.stages.silhouettes import Ids, iou
from real2sim.stages.splat_gaussians import SH_C0

VERSION = "1"

Array = NDArray[np.float64]

CHANNELS = 3  # instances that one pass of the rasteriser counts
MIN_VOTES = 1e-3  # fewer summed weights are no evidence
OPAQUE = 0.5  # of an instance in a pixel


@dataclass(frozen=True)
class Config:
    """How owners are chosen. Lengths are metres."""

    min_share: float = 0.5
    """Share of the votes from which a Gaussian belongs to an instance."""
    reach_m: float = 0.02
    """A Gaussian of an instance lies no farther than this from its first solid [m]."""

    def __post_init__(self) -> None:
        in_range(self, 0, 1, "min_share")
        above_zero(self, "reach_m")


@dataclass(frozen=True)
class Owners:
    """Of each Gaussian: owner [N] (0: background), its share of the votes [N], and the same of the runner-up."""

    owner: NDArray[np.uint8]
    share: NDArray[np.float32]
    second: NDArray[np.uint8]
    second_share: NDArray[np.float32]

    @staticmethod
    def load(path: Path) -> Owners:
        with np.load(path) as data:
            return Owners(**{name: data[name] for name in ("owner", "share", "second", "second_share")})


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Vote; inputs: sfm, prune, align, segment."""
    T_world_sfm = Similarity.from_json(json.loads((inputs["align"] / "alignment.json").read_text())["T_world_sfm"])
    cameras = [c.transformed(T_world_sfm) for c in read_cameras(inputs["sfm"] / "cameras.json")]
    splat = Splat.load(inputs["prune"] / "splat.ply").transformed(T_world_sfm)
    found = read_instances(inputs["segment"], cameras)
    chosen = nobodys(len(splat))
    frames: list[dict[str, object]] = []
    if found.rows:
        train = [i for i, c in enumerate(cameras) if not c.heldout]
        counts = votes(splat, [cameras[i] for i in train], [found.ids[i] for i in train], len(found.rows), progress)
        chosen = owners(counts, config.min_share)
        chosen.owner[:] *= near_solid(splat, chosen.owner, found, config.reach_m) | (chosen.owner == 0)
        judged = [i for i, c in enumerate(cameras) if c.heldout]
        frames = [agreement(splat, chosen.owner, cameras[i], found.ids[i]) for i in judged]
    np.savez_compressed(out / "owners.npz", **chosen.__dict__)
    (out / "heldout.json").write_text(json.dumps({"frames": frames}, indent=1))
    per = {row.label: mean_iou(frames, row.id) for row in found.rows}
    return Result(
        {"instances": len(found.rows), "gaussians": int((chosen.owner > 0).sum()), "heldout_iou": per}, [], "cpu"
    )


def nobodys(count: int) -> Owners:
    """Owners of Gaussians that all belong to the background."""
    nobody, nothing = np.zeros(count, np.uint8), np.zeros(count, np.float32)
    return Owners(nobody, nothing + 1, nobody.copy(), nothing)


def votes(
    splat: Splat, cameras: Sequence[Camera], ids: Sequence[Ids], count: int, progress: Progress
) -> NDArray[np.float64]:
    """Summed blend weights [N, count + 1] of each Gaussian in the pixels of each id, 0 for none, over all cameras."""
    total = np.zeros((len(splat), count + 1))
    means, quats, scales, opacities = (
        torch.from_numpy(np.ascontiguousarray(v)) for v in (splat.means, splat.quats, splat.scales, splat.opacities)
    )
    for i, (camera, seen) in enumerate(zip(cameras, ids)):
        viewmat = torch.as_tensor(camera.viewmat, dtype=torch.float32)[None]
        K = torch.as_tensor(camera.K, dtype=torch.float32)[None]
        for first in range(0, count + 1, CHANNELS):
            channels = range(first, min(first + CHANNELS, count + 1))
            grey = torch.zeros((len(splat), 1, 3), requires_grad=True)  # colour 1/2, so that no clamp cuts the gradient
            rgb = rasterize(
                means, quats, scales, opacities, grey, viewmat, K, camera.width, camera.height, sh_degree=0
            )[0][0]
            masks = torch.zeros_like(rgb)
            for channel, number in enumerate(channels):
                masks[..., channel] = torch.from_numpy((seen == number).astype(np.float32))
            (rgb * masks).sum().backward()  # type: ignore[no-untyped-call]
            assert grey.grad is not None
            total[:, channels.start : channels.stop] += grey.grad[:, 0, : len(channels)].numpy() / SH_C0
        progress.update(i + 1, len(cameras), votes=i + 1)
    return total


def owners(counts: Array, min_share: float) -> Owners:
    """Owners by counts [N, K + 1] of votes; the background keeps what nobody has min_share of."""
    total = counts.sum(1)
    share = counts / np.maximum(total, MIN_VOTES)[:, None]
    rows = np.arange(len(counts))
    best = share[:, 1:].argmax(1) + 1
    owner = np.where((share[rows, best] >= min_share) & (total > MIN_VOTES), best, 0)
    rest = share.copy()
    rest[rows, owner] = -1
    second = rest.argmax(1)
    return Owners(
        owner.astype(np.uint8), share[rows, owner].astype(np.float32),
        second.astype(np.uint8), np.maximum(share[rows, second], 0).astype(np.float32),
    )  # fmt: skip


def near_solid(splat: Splat, owner: NDArray[np.uint8], found: Instances, reach: float) -> NDArray[np.uint8]:
    """1 where a Gaussian lies within reach of its owner's first solid, above the support; else 0, [N]."""
    from scipy.spatial import cKDTree

    near = np.zeros(len(splat), np.uint8)
    for row in found.rows:
        vertices, _ = found.surfaces[row.id]
        mine = np.flatnonzero(owner == row.id)
        distance, _ = cKDTree(vertices).query(splat.means[mine])
        low, high = vertices.min(0), vertices.max(0)
        inside = ((splat.means[mine] > low) & (splat.means[mine] < high)).all(1)
        near[mine] = ((distance < reach) | inside) & (splat.means[mine, 2] > -0.5 * reach)
    return near


def rendered_ids(splat: Splat, owner: NDArray[np.uint8], camera: Camera) -> Ids:
    """The id map that the Gaussians' owners give: where they are more than half of a pixel, the owner of most of it."""
    code = np.zeros((len(splat), 1, 3), np.float32)
    best = np.full((camera.height, camera.width), OPAQUE, np.float32)
    ids = np.zeros(best.shape, np.uint8)
    for first in range(1, int(owner.max(initial=0)) + 1, CHANNELS):
        numbers = range(first, min(first + CHANNELS, int(owner.max()) + 1))
        code[:] = -0.5 / SH_C0
        for channel, number in enumerate(numbers):
            code[owner == number, 0, channel] = 0.5 / SH_C0
        drawn = Splat(
            splat.means, splat.quats, splat.log_scales, splat.logit_opacities, code,
            np.zeros((len(splat), 0, 3), np.float32),
        )  # fmt: skip
        rgb = render(drawn, camera)["rgb"]
        for channel, number in enumerate(numbers):
            more = rgb[..., channel] > best
            ids[more], best[more] = number, rgb[..., channel][more]
    return ids


def agreement(splat: Splat, owner: NDArray[np.uint8], camera: Camera, ids: Ids) -> dict[str, object]:
    """{"name", "iou": {id: intersection over union}} of rendered owners and masks, where the photo shows the instance."""
    drawn = rendered_ids(splat, owner, camera)
    shown = [int(n) for n in np.unique(ids) if n > 0 and (ids == n).sum() >= 60]
    return {"name": camera.name, "iou": {str(n): round(iou(drawn == n, ids == n), 4) for n in shown}}


def mean_iou(frames: Sequence[Mapping[str, object]], number: int) -> float | None:
    """Mean over the frames that show an instance; None where none does."""
    found = [frame["iou"][str(number)] for frame in frames if str(number) in frame["iou"]]  # type: ignore[index,operator]
    return float(np.mean(found)) if found else None
