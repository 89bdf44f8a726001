# SPDX-License-Identifier: Apache-2.0
"""ingest on made-up captures: what is kept, what is rejected and why, and that conventions survive."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import IFDRational

from real2sim.errors import CaptureError
from real2sim.stages import ingest
from real2sim.stages.capture_layout import can_read_heif
from real2sim.stages.capture_yaml import parse_known_length, read_capture_yaml
from real2sim.stages.contract import Progress, Result
from real2sim.stages.depth_maps import read_depth_mm
from real2sim.stages.exif import Lens, focal_prior
from real2sim.stages.photos import Rejected, read_photo, upright
from real2sim.stages.transforms_json import read_poses

WIDTH, HEIGHT = 120, 80
EYE = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
JPEG_ERROR = 12.0  # grey levels; a second JPEG coding at quality 97 changes single pixels by less
HEIF_LEVELS = 40  # of a small, strongly compressed picture, away from edges
PIXEL_TOLERANCE = 1e-9  # px; float64 projections of the same geometry


def picture(seed: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """A textured picture [H, W, 3] that no other seed resembles."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth.astype(int) + rng.integers(-4, 5, smooth.shape), 0, 255).astype(np.uint8)


def save_jpeg(path: Path, pixels: NDArray[np.uint8], orientation: int = 1, **exif: Any) -> None:
    """Write stored pixels with EXIF; keywords: make, model, focal, focal35, size."""
    block = Image.Exif()
    block[0x0112] = orientation
    block[0x010F], block[0x0110] = exif.get("make", "Maker"), exif.get("model", "One")
    block.get_ifd(0x8825)[1] = "N"  # GPS latitude reference
    detail = block.get_ifd(0x8769)
    if "focal" in exif:
        detail[0x920A] = IFDRational(int(exif["focal"] * 100), 100)
    if "focal35" in exif:
        detail[0xA405] = exif["focal35"]
    if "size" in exif:
        detail[0xA002], detail[0xA003] = exif["size"]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "JPEG", quality=92, exif=block, comment=b"a comment")


def run(capture: Path, folder: Path, poses: Path | None = None, **options: Any) -> tuple[Result, dict[str, Any], Path]:
    """Run the stage; its result, frames.json with measures.json, and artifact."""
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir(parents=True)
    scratch.mkdir()
    inputs = {"capture": capture} | ({"poses": poses} if poses else {})
    result = ingest.run(inputs, ingest.Config(**options), out, scratch, Progress())
    description = json.loads((out / "frames.json").read_text()) | json.loads((out / "measures.json").read_text())
    return result, description, out


def rejections(description: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["reason"] for row in description["ledger"] if row["status"] == "rejected"}


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Four good photos."""
    folder = tmp_path / "capture"
    for k in range(4):
        save_jpeg(folder / f"IMG_{k}.jpg", picture(k))
    return folder


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_ends_upright_and_untagged(tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "capture" / "a.jpg"
    save_jpeg(path, picture(1), orientation)
    with Image.open(path) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored)).astype(int)
    _, description, out = run(tmp_path / "capture", tmp_path / "run")
    with Image.open(out / description["frames"][0]["image"]) as image:
        assert not image.getexif()
        got = np.asarray(image).astype(int)
    assert got.shape == expected.shape == (description["frames"][0]["height"], description["frames"][0]["width"], 3)
    assert np.abs(got - expected).max() <= (0 if orientation == 1 else JPEG_ERROR)


def test_upright_photos_keep_their_coded_pixels_and_lose_all_metadata(capture: Path, tmp_path: Path) -> None:
    _, description, out = run(capture, tmp_path / "run")
    before = (capture / "IMG_0.jpg").read_bytes()
    after = (out / description["frames"][0]["image"]).read_bytes()
    start_of_scan = before.index(b"\xff\xda")
    assert after.endswith(before[start_of_scan:])
    assert b"Exif" not in after and b"a comment" not in after and len(after) < len(before)


def test_a_second_picture_behind_the_first_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    save_jpeg(path, picture(1))
    alone = read_photo(path, 64)
    path.write_bytes(path.read_bytes() + path.read_bytes() + b"maker's notes")
    assert read_photo(path, 64).coded == alone.coded


def test_every_input_image_is_used_or_rejected_with_a_reason(capture: Path, tmp_path: Path) -> None:
    good = (capture / "IMG_0.jpg").read_bytes()
    (capture / "empty.jpg").write_bytes(b"")
    (capture / "cut.jpg").write_bytes(good[: len(good) // 2])
    (capture / "text.png").write_text("not an image")
    (capture / "copy.jpg").write_bytes(good)
    (capture / "phone.heic").write_bytes(b"ftypheic")
    save_jpeg(capture / "small.jpg", picture(9, 40, 30))
    save_jpeg(capture / "lens_cap.jpg", np.full((HEIGHT, WIDTH, 3), 3, np.uint8))
    (capture / ".hidden.jpg").write_bytes(b"")
    (capture / "notes.txt").write_text("a table")
    result, description, _ = run(capture, tmp_path / "run")
    reasons = rejections(description)
    expected = {
        "empty.jpg": "0 bytes",
        "cut.jpg": "damaged",
        "text.png": "not a readable image",
        "IMG_0.jpg": "same pixels as copy.jpg",
        "phone.heic": "not a readable image" if can_read_heif() else "real2sim[heic]",
        "small.jpg": "40x30 px",
        "lens_cap.jpg": "blank",
    }
    assert reasons.keys() == expected.keys()
    for path, words in expected.items():
        assert reasons[path].startswith("rejected, because ") and words in reasons[path], reasons[path]
    used = [row for row in description["ledger"] if row["status"] == "used"]
    assert [row["frame"] for row in used] == [f["name"] for f in description["frames"]]
    assert len(used) + len(reasons) == result.metrics["images"] == 11
    assert result.metrics["frames"] == 4 and result.metrics["rejected"] == 7


def test_a_phones_heic_is_turned_once(tmp_path: Path) -> None:
    pytest.importorskip("pi_heif")
    photo = read_photo(Path(__file__).with_name("turned.heic"), 64)  # red at the stored top left; EXIF and irot: 6
    assert photo.pixels.shape == (120, 80, 3) and photo.orientation == 1 and photo.lens.focal35_mm == 26
    red = np.abs(photo.pixels.astype(int) - [250, 20, 20]).max(2) < HEIF_LEVELS
    assert red[2:58, 42:78].all() and not red[62:].any() and not red[:, :38].any()
    shutil.copy(Path(__file__).with_name("turned.heic"), tmp_path / "IMG_1.HEIC")
    _, description, _ = run(tmp_path, tmp_path / "run")
    assert description["frames"][0]["capture_path"] == "IMG_1.HEIC"


@pytest.mark.parametrize("content", [{}, {"notes.txt": b"x"}, {"a.jpg": b"", "b.png": b"junk"}, {"a.heic": b"x"}])
def test_a_capture_without_a_usable_image_is_refused(tmp_path: Path, content: dict[str, bytes]) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    with pytest.raises(CaptureError, match=str(folder)):
        run(folder, tmp_path / "run")


def test_a_missing_capture_and_a_single_photo_are_refused(capture: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no such file"):
        run(tmp_path / "nowhere", tmp_path / "run1")
    with pytest.raises(CaptureError, match="One photo alone"):
        run(capture / "IMG_0.jpg", tmp_path / "run2")


def test_damaged_files_are_rejected_and_never_crash(tmp_path: Path) -> None:
    save_jpeg(tmp_path / "a.jpg", picture(1), 6, focal=4.2, focal35=26, size=(WIDTH, HEIGHT))
    Image.fromarray(picture(2)).save(tmp_path / "b.png")
    rng = np.random.default_rng(0)
    for source in ("a.jpg", "b.png"):
        whole = np.frombuffer((tmp_path / source).read_bytes(), np.uint8)
        for _ in range(150):
            bad = whole.copy()
            at = rng.integers(0, min(len(bad), 600), 4)
            bad[at] = rng.integers(0, 256, 4)
            (tmp_path / "bad").write_bytes(bad[: rng.integers(1, len(bad) + 1)].tobytes())
            try:
                photo = read_photo(tmp_path / "bad", 16)
            except Rejected:
                continue
            assert photo.pixels.ndim == 3 and photo.pixels.dtype == np.uint8


def test_photos_of_one_source_size_and_lens_share_a_camera(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    save_jpeg(folder / "phone" / "1.jpg", picture(1), focal35=26)
    save_jpeg(folder / "phone" / "2.jpg", picture(2), focal35=26)
    save_jpeg(folder / "phone" / "3.jpg", picture(3), 6, focal35=26)  # stored turned: portrait when upright
    save_jpeg(folder / "phone" / "4.jpg", picture(4), focal35=52)
    save_jpeg(folder / "other" / "1.jpg", picture(5), focal35=26)
    _, description, _ = run(folder, tmp_path / "run")
    group_of = {f["capture_path"]: f["group"] for f in description["frames"]}
    assert group_of["phone/1.jpg"] == group_of["phone/2.jpg"]
    assert len(set(group_of.values())) == len(description["groups"]) == 4
    assert {f["source"] for f in description["frames"]} == {"phone", "other"}
    portrait = next(g for g in description["groups"] if g["id"] == group_of["phone/3.jpg"])
    assert (portrait["width"], portrait["height"]) == (HEIGHT, WIDTH)


def test_focal_priors_follow_the_lens_and_are_dropped_where_they_cannot_be_right() -> None:
    full = Lens("m", "n", None, 36.0, None, (3000, 2000))
    assert focal_prior(full, 3000, 2000, 1.2) == (pytest.approx(3000), "exif_35mm")  # 36 mm on a 36 mm wide frame
    assert focal_prior(full, 2000, 3000, 1.2)[0] == pytest.approx(3000)  # turned
    assert focal_prior(full, 1500, 1000, 1.2)[0] == pytest.approx(1500)  # resized
    assert focal_prior(full, 1500, 2000, 1.2) == (1.2 * 2000, "default")  # cropped: the aspect differs
    plane = Lens("m", "n", 50.0, None, 25.0, (3000, 2000))
    assert focal_prior(plane, 3000, 2000, 1.2) == (pytest.approx(6000), "exif")
    assert focal_prior(Lens("m", "n", None, 4000.0), 3000, 2000, 1.2) == (1.2 * 3000, "default")  # implausible
    assert focal_prior(Lens("m", "n", 50.0), 3000, 2000, 1.2) == (1.2 * 3000, "default")  # sensor unknown
    phone, source = focal_prior(Lens("m", "n", 3.81), 1200, 889, 1.2)
    assert source == "exif" and phone == pytest.approx(1034, rel=0.15)  # that phone's calibrated focal length
    assert focal_prior(Lens(), 640, 480, 0.8) == (512, "default")


@pytest.mark.parametrize("kind", ["grey", "palette", "cmyk", "grey16", "rgb16.tiff", "rgb16.png", "rgb.tiff", "la"])
def test_other_pixel_formats_become_8_bit_rgb(tmp_path: Path, kind: str) -> None:
    rgb = picture(3)
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    path, expected, tolerance = tmp_path / "a.png", rgb.astype(int), 1.0
    if kind in ("grey", "la"):
        Image.fromarray(grey).convert("L" if kind == "grey" else "LA").save(path)
        expected = np.repeat(grey[:, :, None], 3, 2).astype(int)
    elif kind == "palette":
        Image.fromarray(rgb).quantize(64).save(path)
        expected = np.asarray(Image.open(path).convert("RGB")).astype(int)
    elif kind == "cmyk":
        path = tmp_path / "a.jpg"
        Image.fromarray(rgb).convert("CMYK").save(path, quality=95)
        tolerance = 40.0  # JPEG
    elif kind == "grey16":
        Image.fromarray(grey.astype(np.uint16) * 257).save(path)
        expected = np.repeat(grey[:, :, None], 3, 2).astype(int)
    else:
        path = tmp_path / f"a{Path(kind).suffix}"
        deep = rgb.astype(np.uint16) * 257 if kind.startswith("rgb16") else rgb
        assert cv2.imwrite(str(path), deep[:, :, ::-1])
    photo = read_photo(path, 64)
    assert photo.pixels.shape == rgb.shape
    assert np.abs(photo.pixels.astype(int) - expected).max() <= tolerance
    decoded = np.asarray(Image.open(io.BytesIO(photo.coded)))
    assert decoded.shape == rgb.shape


def test_transparent_pixels_become_a_mask(tmp_path: Path) -> None:
    rgba = np.dstack([picture(1), np.full((HEIGHT, WIDTH), 255, np.uint8)])
    rgba[:10, :20, 3] = 0
    (tmp_path / "capture").mkdir()
    Image.fromarray(rgba).save(tmp_path / "capture" / "a.png")
    _, description, out = run(tmp_path / "capture", tmp_path / "run")
    mask = np.asarray(Image.open(out / description["frames"][0]["mask"]))
    assert (mask == 255).sum() == 200 and (mask[:10, :20] == 255).all()


def test_only_photos_far_less_sharp_than_the_rest_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    for k in range(9):
        sigma = {4: 6.0, 6: 0.6}.get(k, 0.0)
        pixels = cv2.GaussianBlur(picture(k), (0, 0), sigma) if sigma else picture(k)
        save_jpeg(folder / f"{k}.jpg", np.asarray(pixels, np.uint8))
    _, description, _ = run(folder, tmp_path / "run1")
    reasons = rejections(description)
    assert list(reasons) == ["4.jpg"] and "blurred" in reasons["4.jpg"]
    assert not rejections(run(folder, tmp_path / "run2", min_relative_sharpness=0.0)[1])


def test_near_duplicates_are_listed_and_kept(capture: Path, tmp_path: Path) -> None:
    again = np.clip(picture(2).astype(int) + np.random.default_rng(0).integers(-3, 4, (HEIGHT, WIDTH, 3)), 0, 255)
    save_jpeg(capture / "IMG_9.jpg", again.astype(np.uint8))
    result, description, _ = run(capture, tmp_path / "run")
    assert result.metrics["near_duplicates"] == [["IMG_2.jpg", "IMG_9.jpg"]]
    assert len(description["frames"]) == 5


def test_masks_are_found_by_path_turned_with_their_image_and_thresholded(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    save_jpeg(folder / "a" / "1.jpg", picture(1), 6)
    save_jpeg(folder / "b" / "1.jpg", picture(2))
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[:20] = 200  # stored top: the right side when upright
    (folder / "masks" / "a").mkdir(parents=True)
    Image.fromarray(mask).save(folder / "masks" / "a" / "1.png")
    (folder / "masks" / "stray.png").write_bytes(b"")
    result, description, out = run(folder, tmp_path / "run")
    first, second = description["frames"]
    upright_mask = np.asarray(Image.open(out / first["mask"]))
    assert np.array_equal(upright_mask, upright(np.where(mask > 127, 255, 0).astype(np.uint8), 6))
    assert upright_mask[:, -20:].all() and not upright_mask[:, :-20].any()
    assert second["mask"] is None
    assert any("stray.png" in note for note in result.notes)


def test_a_mask_that_could_belong_to_two_images_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    for source in "ab":
        save_jpeg(folder / source / "1.jpg", picture(ord(source)))
    (folder / "masks").mkdir()
    Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint8)).save(folder / "masks" / "1.png")
    with pytest.raises(CaptureError, match="could belong to several images"):
        run(folder, tmp_path / "run")


def test_a_mask_of_another_shape_is_refused(capture: Path, tmp_path: Path) -> None:
    (capture / "masks").mkdir()
    Image.fromarray(np.zeros((50, 50), np.uint8)).save(capture / "masks" / "IMG_1.png")
    with pytest.raises(CaptureError, match="aspects differ"):
        run(capture, tmp_path / "run")


def test_depth_becomes_millimetres_at_the_size_of_the_image(capture: Path, tmp_path: Path) -> None:
    (capture / "depth").mkdir()
    metres = np.full((HEIGHT // 2, WIDTH // 2), 1.5, np.float32)
    metres[0, :4] = [np.nan, -1, 0.25, np.inf]
    for k in range(4):
        assert cv2.imwrite(str(capture / "depth" / f"IMG_{k}.tiff"), metres)
    (capture / "capture.yaml").write_text("depth: {unit: m, registered: true}")
    _, description, out = run(capture, tmp_path / "run")
    depth = np.asarray(Image.open(out / description["frames"][0]["depth"]))
    assert depth.shape == (HEIGHT, WIDTH) and depth.dtype == np.uint16
    assert depth[0, [0, 2, 4, 6]].tolist() == [0, 0, 250, 0] and (depth[2:] == 1500).all()
    assert description["depth"] == {"unit_m": 0.001, "registered": True, "K": None}


def test_depth_of_its_own_camera_keeps_its_pixels_and_its_intrinsics(capture: Path, tmp_path: Path) -> None:
    (capture / "depth").mkdir()
    stored = np.full((60, 60), 900, np.uint16)
    stored[0, 0], stored[0, 1] = 65535, 0
    for k in range(4):
        Image.fromarray(stored).save(capture / "depth" / f"IMG_{k}.png")
    (capture / "capture.yaml").write_text("depth: {K: [[50, 0, 30], [0, 50, 30], [0, 0, 1]]}")
    _, description, out = run(capture, tmp_path / "run")
    depth = np.asarray(Image.open(out / description["frames"][0]["depth"]))
    assert depth.shape == (60, 60) and depth[0, :3].tolist() == [0, 0, 900]
    assert description["depth"]["registered"] is False and description["depth"]["K"][0][0] == 50


def test_a_damaged_depth_map_is_told_and_its_photo_used(capture: Path, tmp_path: Path) -> None:
    (capture / "depth").mkdir()
    (capture / "depth" / "IMG_0.png").write_bytes(b"junk")
    Image.fromarray(np.full((HEIGHT, WIDTH), 700, np.uint16)).save(capture / "depth" / "IMG_1.png")
    result, description, _ = run(capture, tmp_path / "run")
    assert [f["depth"] is not None for f in description["frames"]] == [False, True, False, False]
    assert any("IMG_0" in note for note in result.notes)


def test_sixteen_bit_depth_may_be_in_any_step(tmp_path: Path) -> None:
    Image.fromarray(np.array([[5000, 10000]], np.uint16)).save(tmp_path / "d.png")
    assert read_depth_mm(tmp_path / "d.png", 0.0002).tolist() == [[1000, 2000]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("markr: {size_m: 0.05}", "unknown key 'markr'. Did you mean 'marker'"),
        ("marker: {size: 0.05}", "unknown key 'marker.size'. Did you mean 'size_m'"),
        ("marker: {size_m: -1}", "marker.size_m: expected a positive number, received -1"),
        ("depth: {unit: inch}", "depth.unit: expected mm, m, or metres per step, received 'inch'"),
        ("depth: {registered: maybe}", "depth.registered: expected true or false"),
        ("known_lengths: [{length_m: 1, points: [{a: [1, 2]}]}]", "known_lengths\\[0\\].points"),
        ("sources: {a: {camera_model: FISHEYE}}", "sources.a.camera_model: expected one of"),
        ("gravity: [0, 0, 0]", "gravity: expected a direction"),
        ("- a\n- b", "expected key: value"),
        ("a: [", "not a readable YAML file"),
    ],
)
def test_a_wrong_capture_yaml_names_the_field_and_what_is_right(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "capture.yaml").write_text(text)
    with pytest.raises(CaptureError, match=words):
        read_capture_yaml(tmp_path)


def test_capture_yaml_and_options_reach_frames_json(capture: Path, tmp_path: Path) -> None:
    (capture / "capture.yaml").write_text(
        "marker: {dictionary: DICT_5X5_50, size_m: 0.04}\nlicence: CC0\n"
        "sources: {.: {camera_model: OPENCV, focal_px: 100, ordered: false}}\n"
        "known_lengths: [{length_m: 0.5, points: [{IMG_1.jpg: [1, 2], IMG_3: [3, 4]}, {IMG_1.jpg: [5, 6]}]}]"
    )
    _, description, _ = run(capture, tmp_path / "run1")
    assert description["marker"] == {"dictionary": "DICT_5X5_50", "size_m": 0.04}
    assert description["ordered"] is False and description["licence"] == "CC0"
    assert (description["groups"][0]["model"], description["groups"][0]["focal_px"]) == ("OPENCV", 100)
    points = description["known_lengths"][0]["points"]
    assert points == [{"00001": [1, 2], "00003": [3, 4]}, {"00001": [5, 6]}]
    stated: dict[str, Any] = {
        "marker_size_m": 0.1,
        "known_length": "0.12 IMG_0 1,2 3,4 IMG_2.jpg 5,6 7,8; 1 IMG_1 0,0 1,1",
    }
    _, description, _ = run(capture, tmp_path / "run2", **stated)
    assert description["marker"] == {"dictionary": "DICT_4X4_50", "size_m": 0.1}
    assert description["known_lengths"][1] == {
        "length_m": 0.12,
        "points": [{"00000": [1, 2], "00002": [5, 6]}, {"00000": [3, 4], "00002": [7, 8]}],
    }
    assert len(description["known_lengths"]) == 3


@pytest.mark.parametrize("text", ["", "0.1 a.jpg 1,2", "x a.jpg 1,2 3,4", "0.1 a.jpg 1;2 3,4", "-1 a.jpg 1,2 3,4"])
def test_a_malformed_known_length_shows_the_form(text: str) -> None:
    with pytest.raises(CaptureError, match="METRES IMAGE x,y x,y"):
        parse_known_length(text)


def test_a_known_length_in_an_unknown_image_names_the_nearest(capture: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"Did you mean 'IMG_1\.jpg'"):
        run(capture, tmp_path / "run", known_length="0.1 IMG_11.jpg 1,2 3,4")


def look_at(eye: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """T_world_cam of an OpenGL camera (x right, y up, z backward) that looks at a target, world z up."""
    backward = (eye - target) / np.linalg.norm(eye - target)
    right = np.cross([0, 0, 1], backward)
    right /= np.linalg.norm(right)
    T = np.eye(4)
    T[:3, :3] = np.stack([right, np.cross(backward, right), backward], 1)
    T[:3, 3] = eye
    return T


def project(K: Any, T_world_cam: Any, point: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pixel of a point for OpenCV axes."""
    T = np.asarray(T_world_cam)
    local = T[:3, :3].T @ (point - T[:3, 3])
    return (np.asarray(K) @ local)[:2] / local[2]


def test_transforms_json_becomes_opencv_cameras_that_see_points_where_they_are(capture: Path, tmp_path: Path) -> None:
    target, above = np.array([0.2, 0.1, 0.0]), np.array([0.2, 0.1, 0.1])
    frames = []
    for k in range(3):
        eye = np.array([np.cos(k), np.sin(k), 0.8])
        frames.append({"file_path": f"./IMG_{k}.jpg", "transform_matrix": look_at(eye, target).tolist()})
    frames[2] |= {"fl_x": 90.0, "fl_y": 95.0}
    common = {"fl_x": 200.0, "fl_y": 200.0, "cx": 122.0, "cy": 78.0, "w": 2 * WIDTH, "h": 2 * HEIGHT, "k1": 0.01}
    (capture / "transforms.json").write_text(json.dumps({**common, "frames": frames}))
    result, description, _ = run(capture, tmp_path / "run")
    assert rejections(description) == {"IMG_3.jpg": "rejected, because transforms.json holds no pose for it"}
    assert description["poses"] == {"metric": False, "source": "transforms.json", "tracked": False}
    assert any("does not say whether its unit is the metre" in note for note in result.notes)
    for frame in description["frames"][:2]:
        seen = project(frame["K"], frame["T_world_cam"], target)
        assert seen == pytest.approx([61, 39], abs=PIXEL_TOLERANCE)  # the principal point, at half the size
        higher = project(frame["K"], frame["T_world_cam"], above)
        assert higher[1] < seen[1] and higher[0] == pytest.approx(seen[0], abs=PIXEL_TOLERANCE)  # up is up
        assert frame["distortion"] == [0.01, 0, 0, 0]
    assert [g["model"] for g in description["groups"]] == ["OPENCV", "OPENCV"]  # the third has its own intrinsics
    assert description["frames"][2]["K"][0][0] == 45.0


def test_poses_are_metric_only_where_something_says_so(capture: Path, tmp_path: Path) -> None:
    rows = [{"image": f"IMG_{k}.jpg", "T_world_cam": EYE} for k in range(4)]
    cases: list[tuple[dict[str, Any], bool | None, bool]] = [
        ({"frames": rows}, None, False),
        ({"frames": rows}, True, True),
        ({"frames": rows, "metric": True}, None, True),
        ({"frames": rows, "convention": "camera-to-world, metres"}, None, True),
        ({"frames": rows, "metric": True}, False, False),
    ]
    for content, option, expected in cases:
        file = tmp_path / "poses.json"
        file.write_text(json.dumps(content))
        folder = tmp_path / f"run{content.keys()}{option}"
        _, description, _ = run(capture, folder, poses=file, poses_metric=option)
        assert description["poses"] == {"metric": expected, "source": "poses.json", "tracked": False}


def test_poses_by_camera_name_carry_their_intrinsics(capture: Path, tmp_path: Path) -> None:
    K = [[100, 0, 60], [0, 100, 40], [0, 0, 1]]
    cameras = {f"IMG_{k}.jpg": {"K": K, "T_world_cam": EYE} for k in range(4)}
    (tmp_path / "poses.json").write_text(json.dumps({"cameras": cameras}))
    _, description, _ = run(capture, tmp_path / "run", poses=tmp_path / "poses.json")
    assert [g["focal_source"] for g in description["groups"]] == ["given"]
    assert description["frames"][0]["K"] == K and description["groups"][0]["model"] == "PINHOLE"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not a readable JSON"),
        ("[]", "expected an object"),
        ("{}", "holds no poses"),
        ('{"frames": [{"file_path": "a.jpg"}]}', "lacks a field"),
        (json.dumps({"frames": [{"image": "a", "T_world_cam": (2 * np.eye(4)).tolist()}]}), "without scale"),
        (json.dumps({"frames": [{"image": "a", "T_world_cam": [[1, 2]]}]}), "finite 4x4"),
        (
            json.dumps({"camera_model": "OPENCV_FISHEYE", "frames": [{"file_path": "a", "transform_matrix": EYE}]}),
            "fisheye",
        ),
    ],
)
def test_a_wrong_file_of_poses_is_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "poses.json").write_text(content)
    with pytest.raises(CaptureError, match=words):
        read_poses(tmp_path / "poses.json")


def test_poses_of_other_images_are_refused(capture: Path, tmp_path: Path) -> None:
    rows = [{"image": "DSC_7.jpg", "T_world_cam": EYE}]
    (tmp_path / "poses.json").write_text(json.dumps({"frames": rows}))
    with pytest.raises(CaptureError, match=r"DSC_7\.jpg; the capture holds IMG_0\.jpg"):
        run(capture, tmp_path / "run", poses=tmp_path / "poses.json")


def write_video(path: Path, frames: int, fps: float, sharp: set[int]) -> None:
    """A video in which only the frames in `sharp` are in focus."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), fps, (160, 120))
    assert writer.isOpened()
    for k in range(frames):
        pixels = picture(k, 160, 120)
        writer.write(pixels if k in sharp else cv2.GaussianBlur(pixels, (0, 0), 3))
    writer.release()


def test_a_video_gives_the_sharpest_frame_of_each_window(tmp_path: Path) -> None:
    sharp = {3, 14, 25}
    write_video(tmp_path / "walk.mp4", 30, 10.0, sharp)
    result, description, _ = run(tmp_path / "walk.mp4", tmp_path / "run", video_fps=1.0)
    assert [f["capture_path"] for f in description["frames"]] == [f"walk.mp4#{k}" for k in sorted(sharp)]
    assert description["ordered"] is True and description["frames"][0]["source"] == "walk.mp4"
    video = result.metrics["videos"][0]
    assert (video["decoded"], video["kept"]) == (30, 3)


def test_a_damaged_video_is_rejected_and_the_photos_beside_it_used(capture: Path, tmp_path: Path) -> None:
    write_video(tmp_path / "walk.mp4", 10, 10.0, set())
    (capture / "cut.mp4").write_bytes((tmp_path / "walk.mp4").read_bytes()[:400])
    _, description, _ = run(capture, tmp_path / "run")
    assert len(description["frames"]) == 4 and "cut.mp4" in rejections(description)


def test_frames_come_in_natural_order_and_numbered_files_count_as_ordered(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    for k in (2, 10, 1):
        save_jpeg(folder / f"IMG_{k}.jpg", picture(k))
    _, description, _ = run(folder, tmp_path / "run1")
    assert [f["capture_path"] for f in description["frames"]] == ["IMG_1.jpg", "IMG_2.jpg", "IMG_10.jpg"]
    assert description["ordered"] is True
    save_jpeg(folder / "garden.jpg", picture(5))
    assert run(folder, tmp_path / "run2")[1]["ordered"] is False


def test_reduced_copies_of_a_folder_are_not_taken_for_a_second_camera(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    for k in range(3):
        save_jpeg(folder / "images" / f"{k}.jpg", picture(k, 240, 160))
        save_jpeg(folder / "images_2" / f"{k}.jpg", picture(k))
    _, description, _ = run(folder, tmp_path / "run")
    assert {f["source"] for f in description["frames"]} == {"images"}
    assert all("reduced copies of images/" in reason for reason in rejections(description).values())


def test_names_in_other_scripts_work(tmp_path: Path) -> None:
    save_jpeg(tmp_path / "Küche 写真" / "стол 1.jpg", picture(1))
    _, description, _ = run(tmp_path / "Küche 写真", tmp_path / "run")
    assert description["frames"][0]["capture_path"] == "стол 1.jpg"


def test_the_same_capture_gives_the_same_bytes(capture: Path, tmp_path: Path) -> None:
    save_jpeg(capture / "turned.jpg", picture(8), 3)
    digests = []
    for name in ("run1", "run2"):
        _, _, out = run(capture, tmp_path / name)
        files = sorted(p for p in out.rglob("*") if p.is_file())
        digests.append({p.relative_to(out): hashlib.sha256(p.read_bytes()).hexdigest() for p in files})
    assert digests[0] == digests[1] and len(digests[0]) == 8


def test_importing_the_stages_loads_nothing_heavy() -> None:
    code = (
        "import sys, real2sim.stages.ingest, real2sim.stages.sfm;"
        "print([m for m in ('cv2', 'pycolmap', 'PIL', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_poses_of_a_video_are_found_by_frame_number(tmp_path: Path) -> None:
    write_video(tmp_path / "walk.mp4", 20, 10.0, {4, 15})
    poses = [[[1, 0, 0, k], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] for k in range(20)]
    (tmp_path / "poses.json").write_text(json.dumps({"T_world_cam": poses, "convention": "metres"}))
    file = tmp_path / "poses.json"
    _, description, _ = run(tmp_path / "walk.mp4", tmp_path / "run", poses=file, video_fps=1.0)
    assert [f["T_world_cam"][0][3] for f in description["frames"]] == [4, 15]
    with pytest.raises(CaptureError, match="several videos"):
        read_poses(file).match(["a.mp4#1", "b.mp4#1"])


def test_masks_that_transforms_json_names_and_that_are_missing_are_told(capture: Path, tmp_path: Path) -> None:
    rows = [{"file_path": f"IMG_{k}.jpg", "transform_matrix": EYE, "mask_path": "m.png"} for k in range(4)]
    (capture / "transforms.json").write_text(json.dumps({"frames": rows}))
    result, _, _ = run(capture, tmp_path / "run")
    assert any("m.png, which transforms.json names, is not a file of the capture" in note for note in result.notes)
