# SPDX-License-Identifier: Apache-2.0
"""Encode pictures as an mp4 with ffmpeg, run as a program of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BackendError


def find_ffmpeg() -> str:
    """An ffmpeg program: the one on PATH, else the one that imageio-ffmpeg brings; raises BackendError without one."""
    found = shutil.which("ffmpeg")
    if found:
        return found
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            "Writing a video needs the ffmpeg program and none was found. "
            "Install one with `pip install 'real2sim[video]'`, or put ffmpeg on PATH."
        ) from error


def write_video(pictures: Iterable[NDArray[np.uint8]], out: Path, width: int, height: int, fps: int) -> None:
    """Write RGB pictures [H, W, 3] uint8 as H.264; the file appears by one rename when it is complete.

    Raises BackendError with ffmpeg's own words where it fails.
    """
    ffmpeg = find_ffmpeg()
    partial = out.with_name(f".{out.stem}.partial{out.suffix}")
    command = [ffmpeg, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    command += ["-r", str(fps), "-i", "-", "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p"]
    command += ["-movflags", "+faststart", str(partial)]
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=words)
        assert process.stdin is not None
        try:
            for picture in pictures:
                process.stdin.write(np.ascontiguousarray(picture, np.uint8).tobytes())
            process.stdin.close()
        except BrokenPipeError:
            pass  # ffmpeg died; its own message says why
        except BaseException:
            process.kill()
            process.wait()
            partial.unlink(missing_ok=True)
            raise
        failed = process.wait() != 0
        words.seek(0)
        message = words.read().decode(errors="replace").strip()
    if failed:
        partial.unlink(missing_ok=True)
        raise BackendError(f"{out}: {ffmpeg} could not write it: {message[-500:]}. Name a file that ends in .mp4.")
    partial.replace(out)
