# SPDX-License-Identifier: Apache-2.0
"""What happens to good captures: changes of a folder of photos, each as some camera, tool or person makes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from real2sim.datasets.synthetic import SyntheticConfig, make_cameras

Pixels = NDArray[np.uint8]
Change = Callable[[Path, SyntheticConfig], None]
FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


def photos(capture: Path) -> list[Path]:
    return sorted(capture.glob("*.jpg"))


def edit(change: Callable[[int, Pixels], Pixels], every: int = 1, quality: int = 95) -> Change:
    """Change the pixels of every n-th photo; its EXIF stays."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        for k, path in enumerate(photos(capture)):
            if k % every == 0:
                with Image.open(path) as image:
                    exif, pixels = image.info.get("exif", b""), np.asarray(image.convert("RGB"))
                Image.fromarray(change(k, pixels.copy())).save(path, "JPEG", quality=quality, exif=exif)

    return apply


def several(*changes: Change) -> Change:
    def apply(capture: Path, config: SyntheticConfig) -> None:
        for change in changes:
            change(capture, config)

    return apply


def keep(chosen: Callable[[int], bool]) -> Change:
    """Only some of the photos are there."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        for k, path in enumerate(photos(capture)):
            if not chosen(k):
                path.unlink()
                (capture / "depth" / f"{path.stem}.png").unlink(missing_ok=True)

    return apply


def blur(length: int) -> Callable[[int, Pixels], Pixels]:
    """Camera shake: a smear of `length` pixels in a direction that differs from photo to photo."""

    def change(k: int, pixels: Pixels) -> Pixels:
        kernel = np.zeros((length, length), np.float32)
        angle = 2.4 * k
        for t in np.linspace(-0.5, 0.5, 4 * length):
            x, y = (round((length - 1) * (0.5 + t * f)) for f in (np.cos(angle), np.sin(angle)))
            kernel[y, x] = 1
        return np.asarray(cv2.filter2D(pixels, -1, kernel / kernel.sum()), np.uint8)

    return change


def noise(sigma: float) -> Callable[[int, Pixels], Pixels]:
    def change(k: int, pixels: Pixels) -> Pixels:
        grain = np.random.default_rng(k).normal(0, sigma, pixels.shape)
        return np.clip(pixels + grain, 0, 255).astype(np.uint8)

    return change


def light(gain: Callable[[int], float]) -> Callable[[int, Pixels], Pixels]:
    """Another exposure: linear light times gain, clipped."""

    def change(k: int, pixels: Pixels) -> Pixels:
        return np.asarray(np.clip((pixels / 255.0) ** 2.2 * gain(k), 0, 1) ** (1 / 2.2) * 255, np.uint8)

    return change


def texture(height: int, width: int, seed: int, cells: int = 24) -> Pixels:
    coarse = np.random.default_rng(seed).integers(0, 255, (cells * height // width + 2, cells, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def overlay(top: float, left: float, bottom: float, right: float) -> Callable[[int, Pixels], Pixels]:
    """A textured thing at the same pixels of every photo, such as a gripper; sides as shares of the picture."""

    def change(_: int, pixels: Pixels) -> Pixels:
        h, w = pixels.shape[:2]
        y0, x0, y1, x1 = (round(v * s) for v, s in ((top, h), (left, w), (bottom, h), (right, w)))
        pixels[y0:y1, x0:x1] = texture(y1 - y0, x1 - x0, 5)
        return pixels

    return change


def stamp(_: int, pixels: Pixels) -> Pixels:
    """A date in the corner, as old cameras print it."""
    return np.asarray(
        cv2.putText(pixels, "2024-05-04", (8, pixels.shape[0] - 10), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (255, 160, 0), 2),
        np.uint8,
    )


def walker(k: int, pixels: Pixels) -> Pixels:
    """Somebody goes through the picture, another place each time."""
    h, w = pixels.shape[:2]
    x = int((0.13 * k % 0.8) * w)
    pixels[:, x : x + w // 5] = texture(h, w // 5, 9)
    return pixels


def elsewhere(k: int, pixels: Pixels) -> Pixels:
    """A photo of another place: a textured wall, each time the same wall from another side."""
    h, w = pixels.shape[:2]
    wall = texture(2 * h, 2 * w, 77, 60)
    corners = np.array([[0, 0], [w, 0], [w, h], [0, h]], np.float32)
    source = corners * 1.2 + np.array([12.0 * k, 5.0 * k], np.float32)
    source += np.random.default_rng(k).uniform(-0.06 * w, 0.06 * w, (4, 2)).astype(np.float32)
    return np.asarray(cv2.warpPerspective(wall, cv2.getPerspectiveTransform(source, corners), (w, h)), np.uint8)


def resized(scale: Callable[[int], float]) -> Callable[[int, Pixels], Pixels]:
    def change(k: int, pixels: Pixels) -> Pixels:
        s = scale(k)
        return np.asarray(cv2.resize(pixels, None, fx=s, fy=s, interpolation=cv2.INTER_AREA), np.uint8)

    return change


def stored_turned(orientation: int) -> Change:
    """Photos held upright whose pixels are stored turned, with the tag that says so, or every other one so."""
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}[orientation]

    def apply(capture: Path, _: SyntheticConfig) -> None:
        for path in photos(capture)[::2]:
            with Image.open(path) as image:
                exif, turned = image.getexif(), image.transpose(turn)
            exif[0x0112] = orientation
            turned.save(path, "JPEG", quality=95, exif=exif)

    return apply


def exif_focal(factor: float) -> Change:
    """EXIF says a focal length that is wrong by a factor, as after a crop that kept the tag."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        for path in photos(capture):
            with Image.open(path) as image:
                exif, pixels = image.getexif(), image.copy()
            detail = exif.get_ifd(0x8769)
            detail[0xA405] = max(1, round(detail[0xA405] * factor))
            detail.pop(0x920A, None)
            pixels.save(path, "JPEG", quality=95, exif=exif)

    return apply


def converted(suffix: str, mode: str) -> Change:
    """Photos of another kind of file; EXIF is lost on the way."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        for path in photos(capture):
            with Image.open(path) as image:
                if mode == "RGB16":
                    deep = np.asarray(image)[:, :, ::-1].astype(np.uint16) * 257
                    cv2.imwrite(str(path.with_suffix(suffix)), deep)
                else:
                    image.convert(mode).save(path.with_suffix(suffix))
            path.unlink()

    return apply


def into_folders(*names: str) -> Change:
    """Photos in several folders, with names that repeat: img0 … in each."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        found = photos(capture)
        for name, share in zip(names, np.array_split(np.arange(len(found)), len(names))):
            (capture / name).mkdir(parents=True)
            for i, k in enumerate(share):
                found[k].rename(capture / name / f"img{i}.jpg")

    return apply


def damaged(how: Callable[[bytes], bytes], every: int) -> Change:
    def apply(capture: Path, _: SyntheticConfig) -> None:
        for path in photos(capture)[::every]:
            path.write_bytes(how(path.read_bytes()))

    return apply


def masked(mask: Callable[[int, int, int], Pixels], every: int = 1) -> Change:
    """masks/*.png, white = ignore; mask(k, height, width)."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        (capture / "masks").mkdir()
        for k, path in enumerate(photos(capture)):
            if k % every == 0:
                with Image.open(path) as image:
                    width, height = image.size
                Image.fromarray(mask(k, height, width)).save(capture / "masks" / f"{path.stem}.png")

    return apply


def box_mask(top: float, left: float, bottom: float, right: float, scale: float = 1.0) -> Callable[..., Pixels]:
    def mask(_: int, height: int, width: int) -> Pixels:
        h, w = round(height * scale), round(width * scale)
        out = np.zeros((h, w), np.uint8)
        out[round(top * h) : round(bottom * h), round(left * w) : round(right * w)] = 255
        return out

    return mask


def card(**fields: Any) -> Change:
    """capture.yaml says something else; None takes a field away."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        path = capture / "capture.yaml"
        data = {**yaml.safe_load(path.read_text()), **fields}
        path.write_text(yaml.safe_dump({k: v for k, v in data.items() if v is not None}))

    return apply


def depth_times(factor: float, scale: float = 1.0) -> Change:
    """Depth maps whose values, or size, are another tool's."""

    def apply(capture: Path, _: SyntheticConfig) -> None:
        for path in sorted((capture / "depth").glob("*.png")):
            depth = cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype(np.float64) * factor
            small = cv2.resize(depth, None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST_EXACT)
            cv2.imwrite(str(path), np.clip(np.round(small), 0, 65535).astype(np.uint16))

    return apply


def poses_file(
    change: Callable[[NDArray[np.float64], int], NDArray[np.float64]] = lambda T, _: T,
    axes: bool = True,
    metric: bool | None = True,
    names: Callable[[str], str] = lambda name: f"{name}.jpg",
) -> Change:
    """transforms.json with the true cameras, changed; axes: with OpenGL axes, as it should be."""

    def apply(capture: Path, config: SyntheticConfig) -> None:
        rows = []
        for k, camera in enumerate(make_cameras(config)):
            T = change(camera.T_world_cam.copy(), k) @ (FLIP if axes else np.eye(4))
            k1, k2 = (*camera.distortion, 0.0, 0.0)[:2]
            intrinsics = {"fl_x": camera.K[0, 0], "fl_y": camera.K[1, 1], "cx": camera.K[0, 2], "cy": camera.K[1, 2]}
            size = {"w": camera.width, "h": camera.height, "k1": k1, "k2": k2}
            rows.append({"file_path": names(camera.name), "transform_matrix": T.tolist(), **intrinsics, **size})
        data: dict[str, Any] = {"frames": rows} | ({"metric": metric} if metric is not None else {})
        (capture / "transforms.json").write_text(json.dumps(data))

    return apply


def hidden_marker(capture: Path, config: SyntheticConfig) -> None:
    """No marker in the scene that the card could speak of: the card says nothing of one."""
    card(marker=None)(capture, config)


def cut_video(share: float) -> Change:
    def apply(capture: Path, _: SyntheticConfig) -> None:
        path = next(capture.glob("*.mp4"))
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return apply


def duplicates(capture: Path, _: SyntheticConfig) -> None:
    """Every photo was copied twice more."""
    for path in photos(capture):
        for k in range(2):
            shutil.copy(path, path.with_name(f"{path.stem}_copy{k}.jpg"))


def unicode_names(capture: Path, _: SyntheticConfig) -> None:
    for path in photos(capture):
        path.rename(path.with_name(f"Küche 写真 {path.name}"))


def bomb(capture: Path, _: SyntheticConfig) -> None:
    """A small PNG that promises 60,000 x 60,000 pixels."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )
    (capture / "bomb.png").write_bytes(data)
