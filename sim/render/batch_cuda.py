# SPDX-License-Identifier: Apache-2.0
"""The batch renderer on CUDA: what each kernel is given, in which order, and how much memory that takes.

A chunk of views goes through `pose` (a matrix for each body), `project` (records and pairs), `find_long`, `fill_long`
and `sort_long` (lists that a tile cannot sort itself) and `raster`. Nothing of that waits for the host; what did not
fit its capacity is counted, and a chunk that lacked room is drawn again with exactly what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.errors import TransientError
from real2sim.sim.render.batch import BatchRequest, Output, Plan, Precision, RasterizeMode
from real2sim.sim.render.clusters import CLUSTER, make_clusters
from real2sim.sim.render.cuda_program import Argument, Kernels, Source
from real2sim.sim.render.splat import Splat

TILE = 16  # [px], as in cuda/intrinsics.cuh
RECORD_BYTES, NORMAL_BYTES, PAIR_BYTES, SPILL_BYTES, POSE_FLOATS = 32, 16, 8, 16, 16
RASTER_THREADS, SORT_THREADS, LIST_BLOCKS = 128, 256, 264
MEMORY_SHARE = 0.5  # of free memory that a call's chunks may take
LAYER_WORLDS = 4  # from so many worlds on, a fixed layer pays in the call that makes it


@dataclass(frozen=True)
class Tuning:
    """Sizes that change speed and memory, never a pixel.

    views_at_once: views in a chunk; sort_max: longest tile list sorted in shared memory; bin_capacity: pairs of a tile
    before they spill; view_group: views that a block of `project` loops over, at most 32; blocks_per_sm: register limit
    of the raster; streams: 2 projects the next chunk while this one is blended; half_exponents: "fast" takes its
    exponents in half too; unroll: of the blending loop.
    """

    views_at_once: int = 128
    sort_max: int = 1024
    bin_capacity: int = 1024
    view_group: int = 16
    blocks_per_sm: int = 8
    streams: int = 1
    half_exponents: bool = True
    unroll: int = 2


TUNING: dict[Precision, Tuning] = {
    "fast": Tuning(),
    "exact": Tuning(blocks_per_sm=6),
}  # fastest of those tried on an H200


@dataclass(frozen=True)
class Frame:
    """What all chunks of a call share. shared_*: one set of cameras for all worlds."""

    request: BatchRequest
    tiles: int
    shared_viewmats: bool
    shared_Ks: bool


@dataclass
class Bins:
    """A chunk's working memory, and after `_bin` its projected Gaussians and tile lists. first: the first Gaussian that
    has a record; totals: pairs in long lists, long lists, spilled pairs."""

    first: int
    stride: int
    capacity: int
    poses: Tensor
    records: Tensor
    normals: Tensor | None
    counts: Tensor
    pairs: Tensor
    spill: Tensor
    long_list: Tensor
    offsets: Tensor
    cursors: Tensor
    long_pairs: Tensor


@dataclass
class Layer:
    """The fixed Gaussians as fixed cameras see them: lists for tiles where something moves, pixels for the others."""

    size: tuple[int, int, float, float]
    outputs: frozenset[Output]
    bins: Bins
    colour: Tensor
    depth: Tensor
    body: Tensor
    normal: Tensor


@dataclass(frozen=True)
class Room:
    """Capacities for each view: spilled pairs, and pairs in long lists."""

    spill: int
    long: int


class CudaBackend:
    """One template on one device. kernels: where compiled programs come from."""

    def __init__(
        self,
        template: Splat,
        body_ids: NDArray[np.int32],
        device: torch.device,
        kernels: Kernels,
        precision: Precision,
        rasterize_mode: RasterizeMode,
        tuning: Tuning | None = None,
    ) -> None:
        self.device, self.tuning, self.precision = device, tuning or TUNING[precision], precision
        self.rasterize_mode = rasterize_mode
        self._kernels = kernels
        self.clusters = make_clusters(template, body_ids)
        self._template = {
            name: torch.as_tensor(getattr(self.clusters, name)).to(device)
            for name in ("geometry", "factors", "colours", "shortest", "spheres", "spreads", "bodies")
        }
        self._rooms: dict[tuple[int, int], Room] = {}
        self._layer: Layer | None = None
        self._seen_cameras: tuple[Tensor, Tensor] | None = None
        self._captured: tuple[Tensor, NDArray[np.int64], Room] | None = None

    # ---- sizes

    def plan(
        self, nworld: int, ncam: int, width: int, height: int, outputs: tuple[Output, ...], dtype: torch.dtype
    ) -> Plan:
        """Views at once and memory of a call, without a fixed layer."""
        views = nworld * ncam
        tiles = _tiles(width, height)
        free = self._free_bytes()
        per_view = self._bytes_per_view(tiles, "normals" in outputs, self._room(width, height))
        images = sum(_image_bytes(name, dtype) for name in outputs) * views * width * height
        at_once = self._views_at_once(views, per_view, None if free is None else free - images)
        workspace = at_once * per_view * self.tuning.streams + self._template_bytes()
        return Plan(nworld, views, at_once, workspace, images, free)

    def _free_bytes(self) -> int | None:
        if self.device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(self.device)
        reserved, allocated = torch.cuda.memory_reserved(self.device), torch.cuda.memory_allocated(self.device)
        return free + reserved - allocated

    def _template_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._template.values())

    def _bytes_per_view(self, tiles: int, normals: bool, room: Room) -> int:
        gaussian = RECORD_BYTES + (NORMAL_BYTES if normals else 0)
        lists = tiles * (self.tuning.bin_capacity * PAIR_BYTES + 16) + room.spill * SPILL_BYTES + room.long * PAIR_BYTES
        return self.clusters.gaussians * gaussian + lists

    def _views_at_once(self, views: int, per_view: int, free: int | None) -> int:
        most = min(self.tuning.views_at_once, views)
        if free is not None:
            most = min(most, int(MEMORY_SHARE * free) // (per_view * self.tuning.streams))
        return max(most, 1)

    def _room(self, width: int, height: int) -> Room:
        """Capacities that were enough so far for images of this size; at first, room for a few crowded tiles."""
        first = max(2048, self.clusters.gaussians // 8)
        return self._rooms.get((width, height), Room(first, 4 * first))

    # ---- drawing

    def render(self, request: BatchRequest) -> dict[str, Tensor]:
        """Draw a checked request; under `torch.cuda.graph` see `lacked_room`."""
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        shape = (request.nworld, request.ncam, request.height, request.width)
        images = {name: self._image(name, shape, request.dtype) for name in request.outputs}
        frame = Frame(
            request, _tiles(request.width, request.height), request.viewmats.shape[0] == 1, request.Ks.shape[0] == 1
        )
        layer = None if capturing else self._fixed_layer(frame)
        room = self._room(request.width, request.height)
        views = request.nworld * request.ncam
        per_view = self._bytes_per_view(frame.tiles, "normals" in request.outputs, room)
        at_once = self._views_at_once(views, per_view, None if capturing else self._free_bytes())
        if capturing:
            chunks = _chunks(0, views, at_once)
            totals = self._draw_chunks(frame, layer, images, chunks, room)
            self._captured = (totals, np.array([count for _, count in chunks]), room)
            return images
        self._draw_checked(frame, layer, images, _chunks(0, views, at_once), room)
        return images

    def lacked_room(self) -> bool:
        """Whether the last replay of the last call captured in a graph lacked room, so that its images are not whole:
        call `render` outside the graph then, and capture again. Waits for the device."""
        if self._captured is None:
            return False
        totals, counts, room = self._captured
        return bool(_lacking(totals.cpu().numpy(), counts, room).any())

    def _draw_checked(
        self, frame: Frame, layer: Layer | None, images: dict[str, Tensor], chunks: list[tuple[int, int]], room: Room
    ) -> None:
        """Draw chunks of views (first, count), and those again that lacked room, with what they need."""
        try:
            totals = self._draw_chunks(frame, layer, images, chunks, room).cpu().numpy()
        except torch.cuda.OutOfMemoryError as error:
            if chunks[0][1] == 1:
                raise TransientError(
                    f"Not enough memory on {self.device} to draw one view of {frame.request.width} x "
                    f"{frame.request.height} px: use fewer worlds in a call, smaller images or a smaller template."
                ) from error
            torch.cuda.empty_cache()
            halves = [half for first, count in chunks for half in _chunks(first, count, -(-count // 2))]
            self._draw_checked(frame, layer, images, halves, room)
            return
        counts = np.array([count for _, count in chunks])
        short = _lacking(totals, counts, room)
        if not short.any():
            return
        more = self._more_room(frame, totals[short], counts[short], room)
        self._draw_checked(frame, layer, images, [c for c, s in zip(chunks, short, strict=True) if s], more)

    def _more_room(self, frame: Frame, totals: NDArray[np.int32], counts: NDArray[np.int64], room: Room) -> Room:
        """What chunks that lacked room need, kept for the calls to come."""
        need = totals.view(np.uint32) / counts[:, None]
        more = Room(max(room.spill, math.ceil(need[:, 2].max())), max(room.long, math.ceil(need[:, 0].max())))
        self._rooms[frame.request.width, frame.request.height] = more
        return more

    def _draw_chunks(
        self, frame: Frame, layer: Layer | None, images: dict[str, Tensor], chunks: list[tuple[int, int]], room: Room
    ) -> Tensor:
        """Draw chunks of views; totals [chunks, 4] on the device."""
        clusters = (0 if layer is None else self.clusters.static, self.clusters.gaussians // CLUSTER)
        totals = torch.zeros((len(chunks), 4), dtype=torch.int32, device=self.device)
        most = max(count for _, count in chunks)
        workspaces = [self._workspace(frame, most, clusters, room) for _ in range(self.tuning.streams)]

        def prepare(k: int) -> None:
            self._bin(frame, workspaces[k % len(workspaces)], chunks[k], layer, totals[k])

        def draw(k: int) -> None:
            self._blend(frame, workspaces[k % len(workspaces)], chunks[k], layer, images)

        if len(workspaces) == 1:
            for k in range(len(chunks)):
                prepare(k)
                draw(k)
        else:
            self._overlap(len(chunks), len(workspaces), prepare, draw)
        return totals

    def _overlap(
        self, chunks: int, workspaces: int, prepare: Callable[[int], None], draw: Callable[[int], None]
    ) -> None:
        """Prepare a chunk on a second stream while the one before it is drawn."""
        main = torch.cuda.current_stream(self.device)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(main)
        drawn: list[torch.cuda.Event] = []
        for k in range(chunks):
            with torch.cuda.stream(side):
                if k >= workspaces:
                    side.wait_event(drawn[k - workspaces])
                prepare(k)
                ready = side.record_event()
            main.wait_event(ready)
            draw(k)
            drawn.append(main.record_event())
        main.wait_stream(side)

    def _workspace(self, frame: Frame, views: int, clusters: tuple[int, int], room: Room) -> Bins:
        first_cluster, last_cluster = clusters

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        normals = "normals" in frame.request.outputs
        bins, stride = views * frame.tiles, (last_cluster - first_cluster) * CLUSTER
        bodies = frame.request.body_poses.shape[1]
        return Bins(
            first=first_cluster * CLUSTER,
            stride=stride,
            capacity=self.tuning.bin_capacity,
            poses=empty(views, bodies, POSE_FLOATS, dtype=torch.float32),
            records=empty(views, stride, RECORD_BYTES // 4),
            normals=empty(views, stride, NORMAL_BYTES // 4, dtype=torch.float32) if normals else None,
            counts=empty(bins),
            pairs=empty(bins, self.tuning.bin_capacity, dtype=torch.int64),
            spill=empty(views * room.spill, 2, dtype=torch.int64),
            long_list=empty(bins),
            offsets=empty(bins),
            cursors=empty(bins),
            long_pairs=empty(views * room.long, dtype=torch.int64),
        )

    def _launch(
        self, source: Source, macros: dict[str, int], kernel: str, blocks: int, threads: int, *args: Argument
    ) -> None:
        if blocks > 0:
            self._kernels.program(source, macros).launch(kernel, blocks, threads, list(args))

    def _bin(self, frame: Frame, bins: Bins, chunk: tuple[int, int], layer: Layer | None, totals: Tensor) -> None:
        """Project a chunk's views and list what touches each tile."""
        self._project(frame, bins, chunk, totals)
        self._gather(frame, bins, chunk[1], layer, totals)

    def _project(self, frame: Frame, bins: Bins, chunk: tuple[int, int], totals: Tensor) -> None:
        first_view, views = chunk
        request, t = frame.request, self._template
        bodies = request.body_poses.shape[1]
        macros = {
            "SH_DEGREE": self.clusters.sh_degree,
            "ANTIALIASED": int(self.rasterize_mode == "antialiased"),
            "NORMALS": int(bins.normals is not None),
        }
        bins.counts.zero_()
        args: tuple[Argument, ...] = (request.viewmats, request.body_poses, bins.poses, first_view, views, request.ncam)
        args += (bodies, int(frame.shared_viewmats))
        self._launch("project", macros, "pose", -(-views * bodies // 128), 128, *args)
        group = self.tuning.view_group
        args = (t["geometry"], t["factors"], t["colours"], t["shortest"], t["spheres"], t["spreads"], t["bodies"])
        args += (bins.poses, request.Ks, self.clusters.gaussians, bins.first // CLUSTER, bins.stride, views, group)
        args += (bodies, first_view)
        args += (request.ncam, int(frame.shared_Ks), request.width, request.height, request.near, request.far)
        args += (bins.records, bins.normals, bins.counts, bins.pairs, bins.capacity)
        args += (bins.spill, totals[2:], len(bins.spill))
        blocks = bins.stride // CLUSTER * -(-views // group)
        self._launch("project", macros, "project", blocks, CLUSTER, *args)

    def _gather(self, frame: Frame, bins: Bins, views: int, layer: Layer | None, totals: Tensor) -> None:
        """Gather and sort the lists that are too long for a block's shared memory."""
        fixed, fixed_bins = (None, 1) if layer is None else (layer.bins, len(layer.bins.counts))
        count = views * frame.tiles
        args: tuple[Argument, ...] = (bins.counts, fixed and fixed.counts, count, fixed_bins, self.tuning.sort_max)
        args += (bins.capacity, len(bins.long_pairs), len(bins.spill), totals)
        args += (bins.long_list, bins.offsets, bins.cursors)
        self._launch("lists", {}, "find_long", -(-count // 128), 128, *args)
        args = (bins.counts, bins.pairs, bins.capacity, bins.spill, len(bins.spill))
        if fixed is None:
            args += (None, None, 0, None, None, fixed_bins)
        else:
            args += (fixed.counts, fixed.pairs, fixed.capacity, fixed.offsets, fixed.long_pairs, fixed_bins)
        args += (totals, bins.long_list, bins.offsets, bins.cursors, bins.long_pairs)
        blocks = min(LIST_BLOCKS, count)
        self._launch("lists", {}, "fill_long", blocks, SORT_THREADS, *args)
        args = (totals, bins.long_list, bins.counts, fixed and fixed.counts, fixed_bins, bins.offsets, bins.long_pairs)
        self._launch("lists", {}, "sort_long", blocks, SORT_THREADS, *args)

    def _blend(
        self,
        frame: Frame,
        bins: Bins,
        chunk: tuple[int, int],
        layer: Layer | None,
        images: dict[str, Tensor],
        keep: Layer | None = None,
    ) -> None:
        """Blend a chunk into the images, over a layer if there is one; or keep it as a layer."""
        request, first_view, views = frame.request, *chunk
        outputs = keep.outputs if keep else request.outputs
        macros = {name.upper(): int(name in outputs) for name in ("rgb", "depth", "alpha", "segmentation", "normals")}
        macros |= {"FAST": self._fast(), "SORT_MAX": self.tuning.sort_max}
        macros |= {"OUTPUT_BITS": 8 * request.dtype.itemsize, "BLOCKS_PER_SM": self.tuning.blocks_per_sm}
        macros |= {"UNROLL": self.tuning.unroll}
        macros |= {"LAYER": 1 if keep else 2 if layer else 0}
        args: tuple[Argument, ...] = (
            bins.counts,
            bins.pairs,
            bins.offsets,
            bins.long_pairs,
            bins.records,
            bins.normals,
        )
        args += (bins.capacity, bins.stride, bins.first)
        if layer is None:
            args += (None,) * 6 + (0, 0)
        else:
            b = layer.bins
            args += (b.counts, b.pairs, b.offsets, b.long_pairs, b.records, b.normals, b.capacity, b.stride)
        kept = keep or layer
        args += (None,) * 4 if kept is None else (kept.colour, kept.depth, kept.body, kept.normal)
        args += (self._template["bodies"], request.background, request.gain, first_view, request.ncam)
        args += (request.width, request.height)
        args += tuple(images.get(name) for name in ("rgb", "alpha", "depth", "segmentation", "normals"))
        self._launch("raster", macros, "raster", views * frame.tiles, RASTER_THREADS, *args)

    def _fast(self) -> int:
        """The raster's macro FAST."""
        return 0 if self.precision == "exact" else 2 if self.tuning.half_exponents else 1

    def _image(self, name: Output, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name == "segmentation":
            dtype = torch.int32
        elif name == "depth" and dtype == torch.uint8:
            dtype = torch.float32
        channels = (3,) if name in ("rgb", "normals") else ()
        return torch.empty((*shape, *channels), dtype=dtype, device=self.device)

    # ---- the fixed layer

    def _fixed_layer(self, frame: Frame) -> Layer | None:
        """The layer of cameras that all worlds share: kept while they stay, made where it pays, else none."""
        request = frame.request
        if not (frame.shared_viewmats and frame.shared_Ks and self.clusters.static):
            self._layer = self._seen_cameras = None
            return None
        seen = self._seen_cameras
        stayed = seen is not None and _equal(seen[0], request.viewmats) and _equal(seen[1], request.Ks)
        if not stayed:
            self._layer = None
            self._seen_cameras = (request.viewmats.clone(), request.Ks.clone())
        size = (request.width, request.height, request.near, request.far)
        if self._layer is not None and (
            self._layer.size != size or not self._layer.outputs.issuperset(request.outputs)
        ):
            self._layer = None
        if self._layer is None and (stayed or request.nworld >= LAYER_WORLDS):
            self._layer = self._make_layer(frame, size)
        return self._layer

    def _make_layer(self, frame: Frame, size: tuple[int, int, float, float]) -> Layer:
        """Draw the clusters of body 0 once for each camera; lists and records stay for the tiles that are drawn over."""
        request = replace(frame.request, body_poses=frame.request.body_poses[:1])
        frame = replace(frame, request=request)
        views, pixels = request.ncam, request.ncam * request.width * request.height
        room = self._rooms.get((request.width, request.height), Room(4096, self.clusters.gaussians))

        def empty(wanted: bool, *channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty((pixels if wanted else 0, *channels), dtype=dtype, device=self.device)

        while True:
            bins = self._workspace(frame, views, (0, self.clusters.static), room)
            totals = torch.zeros((1, 4), dtype=torch.int32, device=self.device)
            self._bin(frame, bins, (0, views), None, totals[0])
            need, counts = totals.cpu().numpy(), np.array([views])
            if not _lacking(need, counts, room).any():
                break
            room = self._more_room(frame, need, counts, room)
        layer = Layer(
            size=size,
            outputs=frozenset(request.outputs),
            bins=bins,
            colour=empty(True, 4),
            depth=empty("depth" in request.outputs),
            body=empty("segmentation" in request.outputs, dtype=torch.int32),
            normal=empty("normals" in request.outputs, 4),
        )
        self._blend(frame, bins, (0, views), None, {}, keep=layer)
        return layer


def _tiles(width: int, height: int) -> int:
    return -(-width // TILE) * -(-height // TILE)


def _image_bytes(name: Output, dtype: torch.dtype) -> int:
    """Bytes of an output's pixel."""
    if name == "segmentation":
        return 4
    if name == "depth":
        return 4 if dtype == torch.uint8 else dtype.itemsize
    return dtype.itemsize * (3 if name in ("rgb", "normals") else 1)


def _chunks(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Ranges (first, count) of at most `size`."""
    return [(start, min(size, first + count - start)) for start in range(first, first + count, size)]


def _lacking(totals: NDArray[np.int32], views: NDArray[np.int64], room: Room) -> NDArray[np.bool_]:
    """Which chunks lacked room in a workspace that was sized for the largest of them."""
    counted = totals.view(np.uint32)
    return (counted[:, 0] > views.max() * room.long) | (counted[:, 2] > views.max() * room.spill)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
