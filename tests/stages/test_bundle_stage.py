# SPDX-License-Identifier: Apache-2.0
"""The bundle stage on a scene of known geometry: right inputs pass every gate, each wrong one fails its gate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_scene import reindex, run_bundle_stage

from real2sim.errors import BundleError
from real2sim.sim.bundle import Bundle, read_bundle, write_index
from real2sim.sim.gates import Gate
from real2sim.sim.obj import read_vertices, write_obj
from real2sim.sim.scene import compile_model
from real2sim.stages import bundle as stage
from real2sim.stages import verify
from real2sim.stages.contract import Progress

LIMITS = verify.Limits(agreement_cameras=8, agreement_width=160)
RERENDER_DB = 0.01  # the same picture from another frame, float32


@pytest.fixture
def copied(made_bundle: Path, tmp_path: Path) -> Path:
    root = tmp_path / "bundle"
    shutil.copytree(made_bundle, root)
    return root


@pytest.fixture
def inputs(made_artifacts: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Inputs to spoil."""
    copy = {}
    for name, path in made_artifacts.items():
        copy[name] = tmp_path / path.name
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copy[name])
    return copy


def gate(root: Path, name: str) -> Gate:
    bundle = read_bundle(root)
    return {g.name: g for g in verify.gates(bundle, bundle.splat(), Progress(), LIMITS)}[name]


def edit_scene(root: Path, change: Callable[[str], str]) -> None:
    text = (root / "scene.xml").read_text()
    assert change(text) != text
    (root / "scene.xml").write_text(change(text))
    reindex(root, lambda data: None)


def test_right_inputs_pass_every_gate(made_bundle: Path) -> None:
    gates = {g.name: g for g in read_bundle(made_bundle).gates}
    assert list(gates) == ["registered", *verify.NAMES]
    assert all(g.passed for g in gates.values()), gates
    assert gates["rerender"].value is not None and gates["rerender"].value < RERENDER_DB
    assert "12 of 12 spheres" in gates["drop"].evidence


def test_check_repeats_the_gates_of_a_moved_bundle_and_writes_nothing(copied: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in copied.rglob("*")}
    gates = verify.check(copied, Progress(), LIMITS)
    assert [g.name for g in gates] == ["registered", *verify.NAMES]
    assert all(g.passed for g in gates)
    assert {p: p.stat().st_mtime_ns for p in copied.rglob("*")} == before


def test_check_holds_a_bundle_to_the_thresholds_it_was_made_under(copied: Path) -> None:
    reindex(copied, lambda data: data.update(limits={"agreement_median": 1e-9, "drop_count": 3, "unknown": 1.0}))
    gates = {gate.name: gate for gate in verify.check(copied, Progress())}
    assert not gates["agreement"].passed and "3 of 3 spheres" in gates["drop"].evidence


def test_check_names_a_tampered_file(copied: Path) -> None:
    splat = copied / "assets/background/splat.ply"
    content = bytearray(splat.read_bytes())
    content[-2] ^= 4
    splat.write_bytes(content)
    with pytest.raises(BundleError, match=r"splat\.ply"):
        verify.check(copied, Progress(), LIMITS)


def test_same_inputs_give_the_same_digest_and_another_friction_another(
    made_artifacts: dict[str, Path], made_bundle: Path, tmp_path: Path
) -> None:
    first = read_bundle(made_bundle).data
    run_bundle_stage(made_artifacts, tmp_path)
    again = read_bundle(tmp_path / "bundle").data
    assert again["digest"] == first["digest"]
    assert {k: v for k, v in again["files"].items() if k != "report.html"} == {
        k: v for k, v in first["files"].items() if k != "report.html"
    }
    asset = tmp_path / "bundle" / stage.ASSET / "asset.json"
    written = json.loads(asset.read_text())
    assert written["friction"]["value"] == 0.6 and written["mass"] is None
    written["friction"]["value"] = 0.5
    asset.write_text(json.dumps(written))
    assert write_index(tmp_path / "bundle", again).data["digest"] != first["digest"]


def test_lifted_collider_fails_agreement_and_drop(copied: Path) -> None:
    edit_scene(copied, lambda text: text.replace('pos="0 0 -0.02"', 'pos="0 0 0.02"'))
    agreement, drop = gate(copied, "agreement"), gate(copied, "drop")
    assert not agreement.passed and agreement.advice
    assert not drop.passed and drop.value == pytest.approx(0.04, abs=0.002)


def test_missing_part_fails_agreement(copied: Path) -> None:
    """The box is a tenth of the compared pixels or more, and nothing stands for it."""
    edit_scene(
        copied, lambda text: "\n".join(line for line in text.split("\n") if 'geom name="collision_0"' not in line)
    )
    assert not gate(copied, "agreement").passed


def test_tilted_support_fails_drop(copied: Path) -> None:
    edit_scene(copied, lambda text: text.replace('quat="1 0 0 0"', 'quat="0.9962 0.0872 0 0"'))
    drop = gate(copied, "drop")
    assert not drop.passed and "0 of 12" in drop.evidence


def test_support_covered_by_a_part_fails_drop(copied: Path) -> None:
    part = copied / "assets/background/collision_0.obj"
    points = read_vertices(part)
    write_obj(part, (points - points.mean(0)) * [10, 10, 1] + [0, 0, 0.075], np.zeros((0, 3)))
    reindex(copied, lambda data: None)
    bundle = read_bundle(copied)
    drop = verify.drop(bundle, LIMITS)
    assert not drop.passed and "no free place" in drop.evidence


def test_scene_without_support_has_no_drop(copied: Path) -> None:
    reindex(copied, lambda data: data["alignment"].update(support=None))
    drop = gate(copied, "drop")
    assert drop.passed and drop.evidence.startswith("not applicable")
    agreement = gate(copied, "agreement")
    assert agreement.passed


def test_overlap_at_start_fails_loads(copied: Path) -> None:
    ball = '<body name="b" pos="-0.2 0 0.015"><freejoint/><geom type="sphere" size="0.02"/></body></worldbody>'
    edit_scene(copied, lambda text: text.replace("</worldbody>", ball))
    loads = gate(copied, "loads")
    assert not loads.passed and loads.value == pytest.approx(0.005, abs=1e-4)


def test_scene_that_does_not_compile_fails_loads(copied: Path) -> None:
    edit_scene(copied, lambda text: text.replace('size="0.4 0.3 0.02"', 'size="0.4 0.3 0"'))
    bundle = read_bundle(copied)
    gates = verify.gates(bundle, bundle.splat(), Progress(), LIMITS)
    assert [g.name for g in gates] == ["loads"] and not gates[0].passed
    with pytest.raises(BundleError, match=r"scene\.xml"):
        compile_model(bundle)


@pytest.mark.parametrize("spoil", ["quaternion order", "harmonics", "shift"])
def test_convention_errors_fail_rerender(copied: Path, spoil: str) -> None:
    bundle = read_bundle(copied)
    splat = bundle.splat()
    if spoil == "quaternion order":
        splat = replace(splat, quats=np.roll(splat.quats, -1, 1))
    elif spoil == "harmonics":
        splat = replace(splat, shN=np.roll(splat.shN, 1, 1))
    else:
        splat = replace(splat, means=splat.means + np.float32(0.01))
    assert not verify.rerender(bundle, splat, LIMITS).passed


def test_useless_part_is_left_out_with_a_note(inputs: dict[str, Path], tmp_path: Path) -> None:
    (inputs["collision"] / "part_001.obj").write_text("v 0 0 0.1\nv 0.1 0 0.1\nv 0 0.1 0.1\nf 1 2 3\n")
    path = inputs["collision"] / "collision.json"
    data = json.loads(path.read_text())
    data["parts"].append({"file": "part_001.obj", "volume_m3": 0.0})
    path.write_text(json.dumps(data))
    root = tmp_path / "root"
    (root / stage.ASSET).mkdir(parents=True)
    parts, notes = stage.copy_parts(inputs["collision"], root)
    assert [p.name for p in parts] == ["collision_0"]
    assert len(notes) == 1 and "part_001.obj" in notes[0] and "4 vertices" in notes[0]


def test_masked_pixels_do_not_count(made_bundle: Path, tmp_path: Path) -> None:
    from PIL import Image

    bundle = Bundle(made_bundle, json.loads((made_bundle / "bundle.json").read_text()))
    camera = next(c for c in bundle.cameras() if c.heldout)
    photo = np.asarray(Image.open(made_bundle / str(camera.image))).copy()
    photo[:, :40] = 255
    mask = np.zeros(photo.shape[:2], np.uint8)
    mask[:, :40] = 255
    Image.fromarray(photo).save(tmp_path / "photo.png")
    Image.fromarray(mask).save(tmp_path / "mask.png")
    spoilt = replace(camera, image="photo.png")
    clean = verify.heldout_psnr(bundle.splat(), [replace(spoilt, mask="mask.png")], tmp_path)[camera.name]
    assert clean > 30 > verify.heldout_psnr(bundle.splat(), [spoilt], tmp_path)[camera.name]


@pytest.mark.parametrize(("given", "name"), [("made table", "made-table"), ("../../etc", "etc"), ("日本", "scene")])
def test_bundle_names_are_safe(given: str, name: str) -> None:
    assert stage.safe_name(given) == name
