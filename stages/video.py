# SPDX-License-Identifier: Apache-2.0
"""Videos: the sharpest frame of each window of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from real2sim.stages.photos import Rejected

SHARPNESS_LONG_SIDE = 640  # px; where frames of a window are compared
MAX_FRAMES_DEFAULT_FPS = 30.0


@dataclass(frozen=True)
class VideoFrame:
    """index: 0-based frame number in the video; pixels: RGB [H, W, 3], turned upright as the video's metadata says."""

    index: int
    pixels: NDArray[np.uint8]


@dataclass
class VideoCount:
    """Every decoded frame is kept or was not the sharpest of its window."""

    decoded: int = 0
    kept: int = 0
    seconds: float = 0.0
    window_s: float = 0.0


def sharpest_frames(
    path: Path, fps: float, limit: int, count: VideoCount, report: Callable[[float], None]
) -> Iterator[VideoFrame]:
    """One frame of each 1/fps seconds, at most about `limit` (wider windows in long videos); raises Rejected.

    `count` is filled while the frames are read; report(fraction) tells how far.
    """
    video = cv2.VideoCapture(str(path))
    try:
        if not video.isOpened():
            raise Rejected("it cannot be opened as a video; the file is damaged or its codec is not supported")
        rate = video.get(cv2.CAP_PROP_FPS)
        rate = rate if 0 < rate < 1000 else MAX_FRAMES_DEFAULT_FPS
        total = max(0.0, video.get(cv2.CAP_PROP_FRAME_COUNT))
        count.window_s = max(1 / fps, total / rate / limit)
        yield from _sharpest(video, rate, total, count, report)
    finally:
        video.release()
    if not count.decoded:
        raise Rejected("no frame of it can be decoded; the file is damaged or its codec is not supported")


def _sharpest(
    video: cv2.VideoCapture, rate: float, total: float, count: VideoCount, report: Callable[[float], None]
) -> Iterator[VideoFrame]:
    best: VideoFrame | None = None
    best_sharpness, window = -1.0, 0
    while True:
        decoded, bgr = video.read()
        if not decoded:
            break
        seconds = max(video.get(cv2.CAP_PROP_POS_MSEC) / 1000, 0.0)  # of the frame that was just read
        index, count.decoded = count.decoded, count.decoded + 1
        seconds = seconds if seconds > 0 else index / rate
        count.seconds = seconds
        if best is not None and int(seconds / count.window_s) != window:
            count.kept += 1
            yield best
            best, best_sharpness = None, -1.0
            report(min(1.0, index / total) if total else 0.0)
        window = int(seconds / count.window_s)
        sharpness = _sharpness(bgr)
        if sharpness > best_sharpness:
            best, best_sharpness = VideoFrame(index, np.ascontiguousarray(bgr[:, :, ::-1], np.uint8)), sharpness
    if best is not None:
        count.kept += 1
        yield best


def _sharpness(bgr: NDArray) -> float:
    grey = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
    scale = SHARPNESS_LONG_SIDE / max(grey.shape)
    if scale < 1:
        grey = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return float(cv2.Laplacian(grey, cv2.CV_64F).var())
