# SPDX-License-Identifier: Apache-2.0
"""Fuzz what reads files of strangers: each input is read, or refused by one error of ours; no crash, no hang.

`python -m benchmarks.fuzz [--target ply] [--inputs 1000000] [--seed 0] [--bundle DIR] [--json FILE]`. A fault is kept
as a file, whose name is printed.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.first_stages import write_rows
from real2sim.errors import Real2SimError
from real2sim.sim.bundle import INDEX, Bundle, check_scene_xml, read_index, validate
from real2sim.sim.render.splat import Splat
from real2sim.stages.capture_yaml import read_capture_yaml
from real2sim.stages.exif import read_exif
from real2sim.stages.export_colmap import read_colmap
from real2sim.stages.photos import Rejected, read_photo
from real2sim.stages.transforms_json import read_poses

HANG_S = 10
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
WORDS = (b"nan", b"-1", b"1e999", b"999999999999", b"{", b"[" * 50, b"\x00" * 8, b"../", b'"', b"element vertex ")

Target = Callable[[bytes], object]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """A few changes as damage and malice make them."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at, kind = int(rng.integers(0, len(out) + 1)), int(rng.integers(0, 7))
        if kind == 0:
            del out[at:]
        elif kind == 1:
            del out[at : at + int(rng.integers(1, 64))]
        elif kind == 2:
            out[at:at] = WORDS[int(rng.integers(len(WORDS)))]
        elif kind == 3:
            out[at : at + 4] = struct.pack("<I" if rng.integers(2) else ">I", EDGES[int(rng.integers(len(EDGES)))])
        elif kind == 4 and len(out) > 8:
            start = int(rng.integers(0, len(out)))
            out[at:at] = out[start : start + int(rng.integers(1, 64))]
        elif at < len(out):
            out[at] = int(rng.integers(256))
    return bytes(out)


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"still reading after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(target: Target, seeds: list[bytes], inputs: int, seed: int, keep: Path) -> dict[str, Any]:
    """Feed mutated seeds; how many were read and refused, and the faults: what came out that is no error of ours."""
    rng, read, refused, faults = np.random.default_rng(seed), 0, 0, list[str]()
    start = time.perf_counter()
    for k in range(inputs):
        data = mutate(seeds[k % len(seeds)], rng)
        try:
            with no_longer_than(HANG_S):
                target(data)
            read += 1
        except (Real2SimError, Rejected):
            refused += 1
        except Exception as error:  # what a fuzzer looks for
            path = keep / f"fault-{seed}-{k}"
            path.write_bytes(data)
            faults.append(f"{path}: {type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    return {"inputs": inputs, "read": read, "refused": refused, "faults": faults, "seconds": round(seconds, 1)}


def targets(work: Path, bundle: Path | None) -> dict[str, tuple[Target, list[bytes]]]:
    """Name -> what reads the bytes, and good inputs to begin with."""
    found: dict[str, tuple[Target, list[bytes]]] = {
        "ply": (_in_file(work / "a.ply", Splat.load), [_splat(work / "seed.ply")]),
        "colmap": (_colmap(work / "model"), [_images_bin(), _cameras_bin()]),
        "poses": (_in_file(work / "p.json", read_poses), [_transforms()]),
        "yaml": (_in_file(work / "capture.yaml", lambda path: read_capture_yaml(path.parent)), [_card()]),
        "exif": (read_exif, [_exif()]),
        "photo": (_in_file(work / "a.img", lambda path: read_photo(path, 8)), _photos()),
    }
    if bundle is not None:
        found["bundle"] = (_bundle(work / "b", bundle), [(bundle / INDEX).read_bytes()])
        found["scene"] = (_scene(work / "b", bundle), [(bundle / "scene.xml").read_bytes()])
    return found


def _in_file(path: Path, read: Callable[[Path], object]) -> Target:
    def target(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return target


def _colmap(folder: Path) -> Target:
    folder.mkdir()
    good = {"cameras.bin": _cameras_bin(), "images.bin": _images_bin()}

    def target(data: bytes) -> object:
        file = "images.bin" if len(data) % 2 else "cameras.bin"
        for name, content in good.items():
            (folder / name).write_bytes(data if name == file else content)
        return read_colmap(folder)

    return target


def _bundle(folder: Path, bundle: Path) -> Target:
    folder.mkdir(exist_ok=True)

    def target(data: bytes) -> object:
        (folder / INDEX).write_bytes(data)
        found = Bundle(folder, read_index(folder))
        validate(found)
        return found.gates

    return target


def _scene(folder: Path, bundle: Path) -> Target:
    folder.mkdir(exist_ok=True)
    index = json.loads((bundle / INDEX).read_text())

    def target(data: bytes) -> object:
        (folder / "scene.xml").write_bytes(data)
        return check_scene_xml(Bundle(folder, index))

    return target


def _splat(path: Path) -> bytes:
    rng, n = np.random.default_rng(0), 5
    arrays: list[NDArray[np.float32]] = [
        rng.normal(size=shape).astype(np.float32) for shape in ((n, 3), (n, 4), (n, 3), (n,), (n, 1, 3), (n, 3, 3))
    ]
    Splat(*arrays).save(path)
    return path.read_bytes()


def _cameras_bin() -> bytes:
    return struct.pack("<QiiQQ4d", 1, 1, 1, 120, 80, 100, 102, 61, 39)


def _images_bin() -> bytes:
    row = struct.pack("<i7di", 1, 1, 0, 0, 0, 1, 2, 3, 1) + b"a.jpg\0" + struct.pack("<Qddq", 1, 1.5, 2.5, -1)
    return struct.pack("<Q", 1) + row


def _transforms() -> bytes:
    frame = {"file_path": "a.jpg", "transform_matrix": np.eye(4).tolist(), "mask_path": "m.png"}
    return json.dumps({"fl_x": 100, "w": 120, "h": 80, "k1": 0.1, "frames": [frame, frame]}).encode()


def _card() -> bytes:
    return (
        b"marker: {dictionary: DICT_4X4_50, size_m: 0.08}\ndepth: {unit: mm, registered: true}\n"
        b"known_lengths: ['0.3 a.jpg 1,2 3,4']\ngravity: [0, 0, -1]\n"
    )


def _exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "Maker"
    exif.get_ifd(0x8769)[0x920A] = 4.2
    return exif.tobytes()


def _photos() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    out = []
    for kind in ("JPEG", "PNG", "TIFF", "BMP", "WEBP"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        out.append(buffer.getvalue())
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="ply, colmap, poses, yaml, exif, photo, bundle, scene")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bundle", type=Path, help="a bundle, for the targets bundle and scene")
    parser.add_argument("--json", type=Path, help="write the rows here")
    asked = parser.parse_args()
    keep, rows = Path(tempfile.mkdtemp(prefix="fuzz-faults-")), []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        for name, (target, seeds) in targets(Path(work), asked.bundle).items():
            if not asked.target or name in asked.target:
                rows.append({"target": name, **fuzz(target, seeds, asked.inputs, asked.seed, keep)})
                r = rows[-1]
                print(f"{name:8} {r['inputs']} inputs, {r['read']} read, {r['refused']} refused,"
                      f" {len(r['faults'])} faults, {r['seconds']} s", *r["faults"][:5], sep="\n  ", flush=True)  # fmt: skip
                write_rows(asked.json, rows)
    sys.exit(1 if any(r["faults"] for r in rows) else 0)


if __name__ == "__main__":
    main()
