# SPDX-License-Identifier: Apache-2.0
"""What people really bring: linked folders, repeated names, turned and uneven videos, deep and printed pictures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from test_ingest import picture, rejections, run, save_jpeg

VIDEO_ERROR = 20.0  # grey levels, mean; the coder's loss on these pictures is 9, another turn of them gives 74
CMYK_ERROR = 4.0  # grey levels, mean; a JPEG at quality 95 with four inks gives 2, inverted inks give 100


@pytest.fixture(scope="module")
def ffmpeg() -> str:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    return str(imageio_ffmpeg.get_ffmpeg_exe())


def write_film(path: Path, ffmpeg: str, *options: str) -> None:
    """Thirty pictures at 10 per second, coded with options of ffmpeg."""
    frames = b"".join(picture(k, 160, 120).tobytes() for k in range(30))
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "160x120", "-r", "10", "-i", "-"]
    command = [ffmpeg, "-y", "-v", "error", *source, *options, "-c:v", "libx264", "-crf", "12", str(path)]
    subprocess.run(command, input=frames, check=True)


def test_linked_folders_are_read_once_and_loops_and_dead_links_end(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "capture", tmp_path / "elsewhere"
    for k in range(3):
        save_jpeg(elsewhere / f"{k}.jpg", picture(k))
    save_jpeg(folder / "b" / "1.jpg", picture(7))
    (folder / "a").symlink_to(elsewhere)
    (folder / "again").symlink_to(elsewhere)
    (folder / "loop").symlink_to(folder)
    (folder / "dead.jpg").symlink_to(tmp_path / "nothing.jpg")
    _, description, _ = run(folder, tmp_path / "run")
    assert sorted(f["capture_path"] for f in description["frames"]) == ["a/0.jpg", "a/1.jpg", "a/2.jpg", "b/1.jpg"]
    assert list(rejections(description)) == ["dead.jpg"]


def test_a_film_that_says_how_to_turn_it_comes_upright(tmp_path: Path, ffmpeg: str) -> None:
    write_film(tmp_path / "level.mp4", ffmpeg)
    turn = ["-display_rotation", "90", "-i", str(tmp_path / "level.mp4"), "-c", "copy", str(tmp_path / "film.mp4")]
    subprocess.run([ffmpeg, "-y", "-v", "error", *turn], check=True)
    _, description, out = run(tmp_path / "film.mp4", tmp_path / "run", video_fps=1.0)
    frame = description["frames"][0]
    number = int(frame["capture_path"].partition("#")[2])
    pixels = np.asarray(Image.open(out / frame["image"])).astype(int)
    assert pixels.shape == (160, 120, 3)
    assert np.abs(np.rot90(picture(number, 160, 120)).astype(int) - pixels).mean() < VIDEO_ERROR


def test_windows_of_a_film_are_of_time_where_its_frames_come_unevenly(tmp_path: Path, ffmpeg: str) -> None:
    uneven = "setpts='if(lt(N,15),N/10,1.5+(N-15)/2)/TB'"  # frames 0 to 15 in 1.5 s, 16 to 29 in 7 s
    write_film(tmp_path / "film.mp4", ffmpeg, "-vf", uneven, "-fps_mode", "passthrough")
    _, description, _ = run(tmp_path / "film.mp4", tmp_path / "run", video_fps=1.0)
    numbers = [int(f["capture_path"].partition("#")[2]) for f in description["frames"]]
    assert sum(n <= 15 for n in numbers) == 2 and sum(n > 15 for n in numbers) >= 6


def test_printers_inks_and_deep_colour_keep_their_colours(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    Image.fromarray(picture(1)).convert("CMYK").save(folder / "ink.jpg", quality=95)
    Image.fromarray(picture(2)).convert("LAB").save(folder / "lab.tif")
    cv2.imwrite(str(folder / "deep.tif"), picture(3)[:, :, ::-1].astype(np.uint16) * 257)
    _, description, out = run(folder, tmp_path / "run")
    stored = {f["capture_path"]: np.asarray(Image.open(out / f["image"])).astype(int) for f in description["frames"]}
    for name, seed in (("ink.jpg", 1), ("lab.tif", 2), ("deep.tif", 3)):
        assert np.abs(stored[name] - picture(seed)).mean() < CMYK_ERROR, name


def test_equal_names_and_mixed_shapes_keep_apart(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    for k, source in enumerate(("left", "right")):
        save_jpeg(folder / source / "1.jpg", picture(2 * k))
        save_jpeg(folder / source / "2.jpg", picture(2 * k + 1, 80, 120))
    _, description, _ = run(folder, tmp_path / "run")
    groups = {(g["source"], g["width"], g["height"]) for g in description["groups"]}
    assert groups == {(s, *size) for s in ("left", "right") for size in ((120, 80), (80, 120))}


@pytest.mark.slow
def test_a_photo_of_a_hundred_megapixels_is_used(tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    large = cv2.resize(picture(1), (12000, 8400), interpolation=cv2.INTER_CUBIC)
    Image.fromarray(large).save(tmp_path / "capture" / "a.jpg", quality=60)
    _, description, _ = run(tmp_path / "capture", tmp_path / "run")
    assert (description["frames"][0]["width"], description["frames"][0]["height"]) == (12000, 8400)
