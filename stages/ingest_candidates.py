# SPDX-License-Identifier: Apache-2.0
"""From the files of a capture to candidates for frames: decoded, upright, measured, staged; and the ledger of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.stages.capture_layout import Layout, source_of
from real2sim.stages.exif import Lens
from real2sim.stages.photos import (
    BLANK_CONTRAST,
    Measures,
    Rejected,
    encode_jpeg,
    encode_png,
    measure,
    read_photo,
)
from real2sim.stages.video import VideoCount, sharpest_frames

NEIGHBOURS = 3  # on each side, in the order of the source
MIN_FRAMES_TO_JUDGE_BLUR = 5  # in fewer, a median says nothing


@dataclass
class Candidate:
    """An upright image, staged as a file; sizes are (width, height) in pixels."""

    path: str
    staged: Path
    size: tuple[int, int]
    stored_size: tuple[int, int]
    orientation: int
    lens: Lens
    measures: Measures
    transparent: Path | None = None

    @property
    def source(self) -> str:
        return source_of(self.path.partition("#")[0])


@dataclass
class Ledger:
    """Every input image ends here as used or rejected, with a reason."""

    rejected: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        rows = [{"path": p, "status": "used", "reason": None, "frame": frame} for p, frame in self.used.items()]
        rows += [
            {"path": p, "status": "rejected", "reason": f"rejected, because {reason}", "frame": None}
            for p, reason in self.rejected.items()
        ]
        return rows


def collect_photos(
    layout: Layout, min_side: int, staging: Path, ledger: Ledger, report: Callable[[float], None]
) -> list[Candidate]:
    """Decode and measure every photo; those that cannot be used go to the ledger."""
    found = []
    for index, path in enumerate(layout.photos):
        try:
            found.append(_stage_photo(layout.root, path, min_side, staging / f"photo{index:06d}"))
        except Rejected as reason:
            ledger.rejected[path] = str(reason)
        report((index + 1) / len(layout.photos))
    return found


def collect_video(
    root: Path, path: str, fps: float, limit: int, min_side: int, staging: Path, report: Callable[[float], None]
) -> tuple[list[Candidate], VideoCount]:
    """Decode one video and stage the sharpest frame of each window; raises Rejected."""
    count, found = VideoCount(), []
    for frame in sharpest_frames(root / path, fps, limit, count, report):
        size = (frame.pixels.shape[1], frame.pixels.shape[0])
        if min(size) < min_side:
            raise Rejected(f"it is {size[0]}x{size[1]} px; the shorter side must be at least {min_side} px")
        staged = staging / f"{frame.index:06d}.jpg"
        staged.write_bytes(encode_jpeg(frame.pixels))
        found.append(Candidate(f"{path}#{frame.index}", staged, size, size, 1, Lens(), measure(frame.pixels)))
    return found, count


def drop_blank(candidates: list[Candidate], ledger: Ledger) -> list[Candidate]:
    """Reject images without content, such as a covered lens."""
    for c in candidates:
        if c.measures.contrast < BLANK_CONTRAST:
            ledger.rejected[c.path] = (
                f"it is blank (grey levels vary by {c.measures.contrast:.1f} of 255); was the lens covered?"
            )
    return [c for c in candidates if c.path not in ledger.rejected]


def drop_duplicates(candidates: list[Candidate], ledger: Ledger) -> list[Candidate]:
    """Reject images with exactly the same upright pixels as an earlier one."""
    first: dict[str, str] = {}
    for c in candidates:
        original = first.setdefault(c.measures.digest, c.path)
        if original != c.path:
            ledger.rejected[c.path] = f"it holds the same pixels as {original}"
    return [c for c in candidates if c.path not in ledger.rejected]


def drop_blurred(candidates: list[Candidate], min_relative: float, ledger: Ledger) -> list[Candidate]:
    """Reject images far less sharp than both their source's median and their neighbours' (so a plain wall stays)."""
    for members in _by_source(candidates):
        sharpness = np.array([c.measures.sharpness for c in members])
        if len(members) < MIN_FRAMES_TO_JUDGE_BLUR:
            continue
        median = float(np.median(sharpness))
        for i, c in enumerate(members):
            around = np.r_[sharpness[max(0, i - NEIGHBOURS) : i], sharpness[i + 1 : i + 1 + NEIGHBOURS]]
            if sharpness[i] < min_relative * min(median, float(np.median(around))):
                ledger.rejected[c.path] = (
                    f"it is blurred: sharpness {sharpness[i]:.1f}, where the median of {c.source} is {median:.1f} and"
                    f" its neighbours' {np.median(around):.1f}"
                )
    return [c for c in candidates if c.path not in ledger.rejected]


def near_duplicates(candidates: list[Candidate], levels: float) -> list[tuple[str, str]]:
    """Pairs of images whose thumbnails differ by less than `levels` grey levels (root mean square, mean removed)."""
    if len(candidates) < 2:
        return []
    flat = np.stack([c.measures.thumbnail.ravel() for c in candidates]).astype(np.float64)
    flat -= flat.mean(1, keepdims=True)
    close = _mean_square_differences(flat) < levels**2
    first, second = np.nonzero(np.triu(close, 1))
    return [(candidates[i].path, candidates[j].path) for i, j in zip(first, second)]


def _mean_square_differences(flat: NDArray[np.float64]) -> NDArray[np.float64]:
    square = (flat**2).mean(1)
    return square[:, None] + square[None] - 2 * (flat @ flat.T) / flat.shape[1]


def _by_source(candidates: list[Candidate]) -> Iterator[list[Candidate]]:
    for source in dict.fromkeys(c.source for c in candidates):
        yield [c for c in candidates if c.source == source]


def _stage_photo(root: Path, path: str, min_side: int, base: Path) -> Candidate:
    photo = read_photo(root / path, min_side)
    staged = base.with_suffix(photo.suffix)
    staged.write_bytes(photo.coded)
    transparent = None
    if photo.transparent is not None:
        transparent = base.with_name(base.name + "_alpha.png")
        transparent.write_bytes(encode_png(photo.transparent.astype(np.uint8) * 255))
    size = (photo.pixels.shape[1], photo.pixels.shape[0])
    return Candidate(
        path, staged, size, photo.stored_size, photo.orientation, photo.lens, measure(photo.pixels), transparent
    )
