# SPDX-License-Identifier: Apache-2.0
"""A bundle is read back as it was written, wherever it lies, and refused when it is not what was written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_scene import T_WORLD_SFM, reindex, world_cameras, world_splat

from real2sim.errors import BundleError
from real2sim.sim.bundle import bundle_digest, read_bundle, safe_path, write_index

POSITION_TOLERANCE = 1e-5  # [m]: float32 means went to the reconstruction's frame and back


@pytest.fixture
def copied(made_bundle: Path, tmp_path: Path) -> Path:
    """A copy to damage, in another folder than where it was made."""
    root = tmp_path / "elsewhere" / "moved"
    shutil.copytree(made_bundle, root)
    return root


def index(root: Path) -> dict[str, Any]:
    return json.loads((root / "bundle.json").read_text())


def test_moved_bundle_has_the_cameras_and_gaussians_that_went_in(copied: Path) -> None:
    bundle = read_bundle(copied)
    assert bundle.name == "made-table"
    assert np.abs(bundle.splat().means - world_splat().means).max() < POSITION_TOLERANCE
    for camera, made in zip(bundle.cameras(), world_cameras(), strict=True):
        assert camera.name == made.name and camera.heldout == made.heldout
        assert np.abs(camera.T_world_cam - made.T_world_cam).max() < POSITION_TOLERANCE
        assert (camera.image is not None) == made.heldout
    assert index(copied)["alignment"]["T_world_sfm"]["scale"] == pytest.approx(T_WORLD_SFM.scale)


def test_every_path_is_relative_and_every_file_is_listed(copied: Path) -> None:
    files = {p.relative_to(copied).as_posix() for p in copied.rglob("*") if p.is_file()}
    assert set(index(copied)["files"]) == files - {"bundle.json"}
    assert str(copied.parent.parent) not in (copied / "bundle.json").read_text()


def test_cameras_keep_the_path_of_the_photo(copied: Path) -> None:
    rows = json.loads((copied / "cameras.json").read_text())["cameras"]
    assert rows[3]["capture_path"] == "photos/IMG_00003.jpg"


def test_tampered_byte_is_found_and_its_file_named(copied: Path) -> None:
    for name in index(copied)["files"]:
        content = (copied / name).read_bytes()
        (copied / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(BundleError, match=name):
            read_bundle(copied)
        (copied / name).write_bytes(content)
    read_bundle(copied)


def test_missing_file_is_named(copied: Path) -> None:
    (copied / "assets/background/visual.obj").unlink()
    with pytest.raises(BundleError, match=r"visual\.obj.*missing"):
        read_bundle(copied)


def test_edited_index_is_found(copied: Path) -> None:
    data = index(copied)
    data["gates"][0]["passed"] = False
    (copied / "bundle.json").write_text(json.dumps(data))
    with pytest.raises(BundleError, match="digest"):
        read_bundle(copied)


def test_unknown_fields_are_kept(copied: Path) -> None:
    reindex(copied, lambda data: data.update(weather={"rain": True}))
    assert read_bundle(copied).data["weather"] == {"rain": True}


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_unknown_versions_are_refused(copied: Path, version: Any) -> None:
    reindex(copied, lambda data: data.update(schema=version))
    with pytest.raises(BundleError, match="schema"):
        read_bundle(copied)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("units", {"length": "mm", "mass": "kg", "angle": "rad"}),
        ("frames", {"world": "y up", "camera": "opencv", "quaternion": "wxyz"}),
        ("frames", {"world": "z up", "camera": "opencv", "quaternion": "xyzw"}),
        ("alignment", {"T_world_sfm": {"scale": 0, "rotation": [1, 0, 0, 0], "translation": [0, 0, 0]}, "sources": {}}),
        ("assets", [{"name": "../x"}]),
        ("gates", [{"name": "level"}]),
        ("files", {"scene.xml": {"sha256": "short", "size": 1}}),
    ],
)
def test_schema_violation_names_the_field(copied: Path, where: str, value: Any) -> None:
    reindex(copied, lambda data: data.update({where: value}))
    with pytest.raises(BundleError, match=where):
        read_bundle(copied)


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "/etc/hostname", "a\\b", "C:/x", "", "a\x00b"])
def test_paths_that_leave_the_bundle_are_refused(copied: Path, path: str) -> None:
    with pytest.raises(BundleError, match="path"):
        safe_path(copied, path)
    reindex(copied, lambda data: data.update(semantics=path))
    with pytest.raises(BundleError, match="path"):
        read_bundle(copied)


def test_symbolic_link_out_is_refused(copied: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.obj"
    target = copied / "assets/background/visual.obj"
    shutil.copyfile(target, secret)
    target.unlink()
    target.symlink_to(secret)
    with pytest.raises(BundleError, match=r"visual\.obj.*symbolic link"):
        read_bundle(copied)


def test_camera_image_path_cannot_leave_the_bundle(copied: Path) -> None:
    text = (copied / "cameras.json").read_text().replace("frames/00000.png", "../../x/00000.png")
    (copied / "cameras.json").write_text(text)
    reindex(copied, lambda data: None)
    with pytest.raises(BundleError, match="climbs out"):
        read_bundle(copied).cameras()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<worldbody>", '<include file="other.xml"/><worldbody>', "include"),
        ("<worldbody>", '<extension><plugin plugin="x"/></extension><worldbody>', "extension"),
        ("<compiler ", '<compiler meshdir="/tmp" ', "meshdir"),
        ('file="assets/background/visual.obj"', 'file="/etc/hostname"', "relative"),
        ('file="assets/background/visual.obj"', 'file="../../visual.obj"', "climbs out"),
        ('file="assets/background/visual.obj"', 'file="other.obj"', "not a listed file"),
        ("<mujoco ", '<!DOCTYPE m [<!ENTITY a "aaaa">]><mujoco ', "document type"),
        ("</mujoco>", "", "well-formed"),
    ],
)
def test_scene_that_reaches_out_is_refused(copied: Path, old: str, new: str, why: str) -> None:
    scene = copied / "scene.xml"
    assert old in scene.read_text()
    scene.write_text(scene.read_text().replace(old, new))
    reindex(copied, lambda data: None)
    with pytest.raises(BundleError, match=why):
        read_bundle(copied)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": NaN}', "[" * 100_000, '{"schema": 1}'])
def test_index_that_is_no_index_is_refused(copied: Path, text: str) -> None:
    (copied / "bundle.json").write_text(text)
    with pytest.raises(BundleError, match=r"bundle\.json"):
        read_bundle(copied)


def test_folder_without_index_is_not_a_bundle(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BundleError, match="not a bundle"):
            read_bundle(path)


def test_digest_leaves_out_what_varies_and_nothing_else(copied: Path) -> None:
    data = index(copied)
    digest = bundle_digest(data)
    assert digest == data["digest"]
    stage = data["provenance"]["stages"][0]
    stage["seconds"], stage["host"] = 61.2, "here"
    data["files"]["report.html"]["sha256"] = "0" * 64
    assert bundle_digest(data) == digest
    stage["backend"] = "another"
    assert bundle_digest(data) != digest


def test_index_is_written_last_and_links_are_refused(copied: Path) -> None:
    data = index(copied)
    (copied / "bundle.json").unlink()
    (copied / "link").symlink_to(copied / "scene.xml")
    with pytest.raises(BundleError, match="link"):
        write_index(copied, data)
    assert not (copied / "bundle.json").exists()
    (copied / "link").unlink()
    write_index(copied, data)
    assert index(copied) == data
    assert not list(copied.glob("*.partial"))


@pytest.mark.parametrize("cameras, why", [([], "has cameras"), ("huge", "a side is 1 to")])
def test_cameras_that_cannot_be_rendered_are_refused(copied: Path, cameras: Any, why: str) -> None:
    path = copied / "cameras.json"
    data = json.loads(path.read_text())
    data["cameras"] = [{**data["cameras"][0], "width": 200_000}] if cameras == "huge" else cameras
    path.write_text(json.dumps(data))
    reindex(copied, lambda index: None)
    with pytest.raises(BundleError, match=why):
        read_bundle(copied).cameras()
