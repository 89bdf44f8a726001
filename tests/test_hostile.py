# SPDX-License-Identifier: Apache-2.0
"""Files of strangers: read, or refused by one error of ours, soon and without taking the machine's memory."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.degraded_changes import bomb
from benchmarks.fuzz import fuzz, targets
from real2sim.errors import BundleError, CaptureError, Real2SimError
from real2sim.sim.bundle import INDEX, read_bundle, write_index
from real2sim.sim.render.splat import Splat
from real2sim.stages.capture_yaml import read_capture_yaml
from real2sim.stages.photos import Rejected, read_photo
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.transforms_json import read_poses

INPUTS = 150  # a target; `python -m benchmarks.fuzz --inputs 1000000` runs long
MEMORY = 500e6  # bytes that reading a small file may add, whatever its header promises


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


@pytest.mark.parametrize("name", ["ply", "colmap", "poses", "yaml", "exif", "photo", "bundle", "scene"])
def test_damaged_files_are_read_or_refused_by_an_error_of_ours(name: str, made_bundle: Path, tmp_path: Path) -> None:
    target, seeds = targets(tmp_path, made_bundle)[name]
    told = fuzz(target, seeds, INPUTS, 1, tmp_path)
    assert told["faults"] == [] and told["read"] + told["refused"] == INPUTS


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian"])
def test_a_ply_that_promises_ten_gigabytes_takes_no_memory(tmp_path: Path, form: str) -> None:
    Splat(*(np.zeros(s, np.float32) for s in ((1, 3), (1, 4), (1, 3), (1,), (1, 1, 3), (1, 0, 3)))).save(
        tmp_path / "a.ply"
    )
    data = (tmp_path / "a.ply").read_bytes().replace(b"element vertex 1", b"element vertex 160000000")
    (tmp_path / "a.ply").write_bytes(data.replace(b"binary_little_endian", form.encode()))
    before = peak()
    with pytest.raises(Real2SimError, match=r"a\.ply"):
        Splat.load(tmp_path / "a.ply")
    assert peak() - before < MEMORY


def test_a_bundle_with_gaussians_that_are_not_numbers_is_refused(made_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made_bundle, tmp_path / "b"))
    splat = copy / "assets" / "background" / "splat.ply"
    data = bytearray(splat.read_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    splat.write_bytes(data)
    write_index(copy, json.loads((copy / INDEX).read_text()))
    with pytest.raises(BundleError, match="finite"):
        read_bundle(copy).splat()


def test_deep_nesting_is_refused_everywhere(made_bundle: Path, tmp_path: Path) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    (tmp_path / "transforms.json").write_text(f'{{"frames": {deep}}}')
    with pytest.raises(CaptureError, match=r"transforms\.json"):
        read_poses(tmp_path / "transforms.json")
    (tmp_path / "capture.yaml").write_text(deep[:20_000])
    with pytest.raises(CaptureError, match=r"capture\.yaml"):
        read_capture_yaml(tmp_path)
    copy = Path(shutil.copytree(made_bundle, tmp_path / "b"))
    (copy / INDEX).write_text(f'{{"schema": 1, "name": {deep}}}')
    with pytest.raises(BundleError):
        read_bundle(copy)


def test_a_picture_bomb_is_rejected_by_its_header(tmp_path: Path) -> None:
    bomb(tmp_path, None)  # type: ignore[arg-type]
    before = peak()
    with pytest.raises(Rejected, match=r"too large|megapixels"):
        read_photo(tmp_path / "bomb.png", 64)
    assert peak() - before < MEMORY


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "points.npz", xyz=np.array([{"a": 1}], dtype=object))
    with pytest.raises(Real2SimError, match=r"points\.npz"):
        SparsePoints.load(tmp_path / "points.npz")
