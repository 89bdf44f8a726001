# SPDX-License-Identifier: Apache-2.0
"""The oracle of the batch renderers: every view posed in full and blended in float64, without tiles or chunks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.sim.render.batch import NOTHING, BatchRequest, RasterizeMode
from real2sim.sim.render.reference import (
    PIXELS_AT_ONCE,
    blend_weights,
    pixel_centres,
    project,
    quats_to_matrices,
)
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity, quat_to_matrix


def render_batch_reference(
    template: Splat, body_ids: NDArray[np.int32], request: BatchRequest, rasterize_mode: RasterizeMode = "classic"
) -> dict[str, Tensor]:
    """All outputs of a request as float64 (segmentation int64), [nworld, ncam, H, W, ...], before quantisation."""
    worlds = []
    for w in range(request.nworld):
        posed = pose_template(template, body_ids, request.body_poses[w].double().cpu().numpy())
        shared_V, shared_K = request.viewmats.shape[0] == 1, request.Ks.shape[0] == 1
        views = [
            _view(
                *(posed, body_ids, request.viewmats[0 if shared_V else w, c], request.Ks[0 if shared_K else w, c]),
                *(request, request.background[w].double(), request.gain[w].double(), rasterize_mode),
            )
            for c in range(request.ncam)
        ]
        worlds.append({name: torch.stack([view[name] for view in views]) for name in views[0]})
    return {name: torch.stack([world[name] for world in worlds]) for name in worlds[0]}


def pose_template(template: Splat, body_ids: NDArray[np.int32], body_poses: NDArray[np.float64]) -> Splat:
    """The template in the world, with its harmonics rotated; body_poses [nbody, 7], row 0 not read."""
    parts, places = [], []
    for body in np.unique(body_ids):
        mine = np.nonzero(body_ids == body)[0]
        part = template.select(mine)
        if body > 0:
            R = quat_to_matrix(body_poses[body, 3:] / np.linalg.norm(body_poses[body, 3:]))
            part = part.transformed(Similarity(1.0, R, body_poses[body, :3]))
        parts.append(part)
        places.append(mine)
    order = np.argsort(np.concatenate(places)) if places else np.zeros(0, int)
    names = Splat.__dataclass_fields__
    return (
        Splat(**{n: np.concatenate([getattr(part, n) for part in parts])[order] for n in names}) if parts else template
    )


def _view(
    posed: Splat,
    body_ids: NDArray[np.int32],
    viewmat: Tensor,
    K: Tensor,
    request: BatchRequest,
    background: Tensor,
    gain: Tensor,
    mode: RasterizeMode,
) -> dict[str, Tensor]:
    viewmat, K, size = viewmat.double(), K.double(), (request.width, request.height)
    device = request.viewmats.device
    arrays = (posed.means, posed.quats, posed.scales, posed.opacities, posed.sh)
    values = (torch.as_tensor(v).to(device).double() for v in arrays)
    means, quats, scales, opacities, sh = values
    g = project(
        *(means, quats, scales, opacities, sh, viewmat, K, *size),
        sh_degree=posed.sh_degree,
        near=request.near,
        far=request.far,
        antialiased=mode == "antialiased",
    )
    axes = quats_to_matrices(quats[g.index])
    shortest = torch.take_along_dim(axes, scales[g.index].argmin(1)[:, None, None], 2)[..., 0] @ viewmat[:3, :3].T
    centres = means[g.index] @ viewmat[:3, :3].T + viewmat[:3, 3]
    normals = torch.where((shortest * centres).sum(1, keepdim=True) > 0, -shortest, shortest)
    columns = torch.cat([g.colours, g.depths[:, None], torch.ones_like(g.depths)[:, None], normals], 1)
    bodies = torch.as_tensor(body_ids.astype(np.int64)).to(device)[g.index]
    sums, who = [], []
    for pixels in pixel_centres(*size, torch.float64).to(device).split(PIXELS_AT_ONCE):
        weights = blend_weights(g, pixels)
        sums.append(weights @ columns)
        if len(bodies):
            best, where = weights.max(1)
            who.append(torch.where(best > 0, bodies[where], NOTHING))
        else:
            who.append(torch.full((len(pixels),), NOTHING, device=device))
    total = torch.cat(sums).reshape(size[1], size[0], 8)
    alpha = total[..., 4]
    rgb = (total[..., :3] + (1 - alpha)[..., None] * background) * gain
    length = total[..., 5:].norm(dim=-1, keepdim=True)
    return {
        "rgb": rgb,
        "alpha": alpha,
        "depth": torch.where(alpha > 0, total[..., 3] / torch.where(alpha > 0, alpha, 1.0), 0.0),
        "segmentation": torch.cat(who).reshape(size[1], size[0]),
        "normals": torch.where(length > 0, total[..., 5:] / torch.where(length > 0, length, 1.0), 0.0),
    }
