# SPDX-License-Identifier: Apache-2.0
"""The degraded captures: which base, what happened to it, and how it must end. Kinds are the docs' F1 to F11."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from benchmarks import degraded_changes as ch
from real2sim.datasets.synthetic import SyntheticConfig

SMALL = {"width": 400, "height": 300, "supersample": 2}
BASES: dict[str, SyntheticConfig] = {
    "arc": SyntheticConfig(frames=14, path="arc", **SMALL),
    "orbits": SyntheticConfig(frames=24, path="orbits", **SMALL),
    "rotation": SyntheticConfig(frames=10, path="rotation", **SMALL),
    "flyby": SyntheticConfig(frames=12, path="flyby", **SMALL),
    "depth": SyntheticConfig(frames=14, path="arc", depth=True, **SMALL),
    "video": SyntheticConfig(frames=60, path="arc", media="video", fps=15, **SMALL),
    "lens": SyntheticConfig(frames=14, path="arc", distortion=(-0.25, 0.05), **SMALL),
}

SFM = ("sfm", "registered", "reprojection", "parallax", "consistent", "pairs")
Wanted = Literal["right", "refused", "either"]


@dataclass(frozen=True)
class Case:
    """One degraded capture.

    wanted: "right" must end with poses and scale within the bounds; "refused" must be refused by one of `by` (gates, or
    the stage that refuses); "either" may do either, and nothing else. says: words of the refusal or of the log.
    """

    name: str
    kind: str
    base: str
    change: ch.Change
    wanted: Wanted = "right"
    by: tuple[str, ...] = SFM
    says: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stages: tuple[str, ...] = ("ingest", "sfm", "scale")


def as_it_is(capture: Any, config: SyntheticConfig) -> None:
    """Nothing happened."""


def drifting(T: np.ndarray, k: int) -> np.ndarray:
    """A tracker's pose: a centimetre and half a degree of drift."""
    T[:3, 3] += 0.01 * np.sin([0.7 * k, 0.9 * k, 1.1 * k])
    return T


def scaled(factor: float) -> Any:
    def change(T: np.ndarray, _: int) -> np.ndarray:
        T[:3, 3] *= factor
        return T

    return change


def scattered(T: np.ndarray, k: int) -> np.ndarray:
    T[:3, 3] += np.random.default_rng(k).normal(0, 0.5, 3)
    return T


EDIT = ch.edit
NO_MARKER = ch.hidden_marker
CASES: tuple[Case, ...] = (
    # F1: part of it fails, and is reported as success
    Case("good arc", "F1", "arc", as_it_is),
    Case("good orbits", "F1", "orbits", as_it_is),
    Case("turns on the spot", "F1", "rotation", as_it_is, "refused", ("sfm", "parallax"), "turned on the spot"),
    Case("straight pass", "F1", "flyby", as_it_is, "either", (*SFM, "scale")),
    Case("half of the photos", "F1", "arc", ch.keep(lambda k: k % 2 == 0), "either", (*SFM, "scale")),
    Case("five photos", "F1", "arc", ch.keep(lambda k: k < 5), "either", (*SFM, "scale")),
    Case("two photos", "F1", "arc", ch.keep(lambda k: k < 2), "refused", ("sfm",), "usable frames"),
    Case("every third photo of three rings", "F1", "orbits", ch.keep(lambda k: k % 3 == 0), "either", SFM),
    Case("a quarter is another place", "F1", "arc", EDIT(ch.elsewhere, every=4), "either"),
    Case("half is another place", "F1", "arc", EDIT(ch.elsewhere, every=2), "refused", SFM),
    Case("one photo is another place", "F1", "arc", EDIT(ch.elsewhere, every=14)),
    Case("somebody walks through", "F1", "arc", ch.several(ch.keep(lambda k: k < 9), EDIT(ch.walker)), "either",
         options={"sfm": {"max_features": 1500}}),
    Case("thing in the corner", "F1", "arc", EDIT(ch.overlay(0.75, 0.7, 1, 1)), says="moves with the camera"),
    Case("gripper below", "F1", "arc", EDIT(ch.overlay(0.7, 0.3, 1, 0.7)), says="moves with the camera"),
    Case("gripper over a third", "F1", "arc", EDIT(ch.overlay(0.55, 0.15, 1, 0.85)), "either", (*SFM, "scale"),
         "moves with"),
    Case("gripper over two thirds", "F1", "arc", EDIT(ch.overlay(0.3, 0.0, 1, 1)), "either"),
    Case("gripper, not looked for", "F1", "arc", EDIT(ch.overlay(0.55, 0.15, 1, 0.85)), "either",
         options={"sfm": {"find_still": False}}),
    Case("date in the corner", "F1", "arc", EDIT(ch.stamp)),
    Case("same photo many times", "F1", "arc", ch.duplicates),
    Case("blur 3 px", "F1", "arc", EDIT(ch.blur(3))),
    Case("blur 7 px", "F1", "arc", EDIT(ch.blur(7)), "either", (*SFM, "scale")),
    Case("blur 15 px", "F1", "arc", EDIT(ch.blur(15)), "either", (*SFM, "scale")),
    Case("a third blurred by 15 px", "F1", "arc", EDIT(ch.blur(15), every=3), "either", (*SFM, "scale")),
    Case("noise 8 levels", "F1", "arc", EDIT(ch.noise(8)), "either", (*SFM, "scale")),
    Case("noise 25 levels", "F1", "arc", EDIT(ch.noise(25)), "either", (*SFM, "scale")),
    Case("noise 60 levels", "F1", "arc", EDIT(ch.noise(60)), "either", (*SFM, "scale")),
    Case("dark", "F1", "arc", EDIT(ch.light(lambda k: 0.05)), "either", (*SFM, "scale")),
    Case("black", "F1", "arc", EDIT(ch.light(lambda k: 0.0)), "refused", ("ingest",), "blank"),
    Case("blown out", "F1", "arc", EDIT(ch.light(lambda k: 5.0)), "either", (*SFM, "scale")),
    Case("exposure changes by two stops", "F1", "arc", EDIT(ch.light(lambda k: 2.0 ** (k % 3 - 1))), "either",
         (*SFM, "scale")),
    # F2: conventions at a border
    Case("stored on the head", "F2", "arc", ch.stored_turned(3)),
    Case("half stored turned right", "F2", "arc", ch.stored_turned(6)),
    Case("half stored turned left", "F2", "arc", ch.stored_turned(8)),
    Case("two sizes", "F2", "arc", EDIT(ch.resized(lambda k: 1 if k % 2 else 0.75))),
    Case("cropped to a square", "F2", "arc", EDIT(lambda k, p: p[:, 50:350])),
    Case("EXIF focal length twice as long", "F2", "arc", ch.exif_focal(2.0)),
    Case("EXIF focal length half as long", "F2", "arc", ch.exif_focal(0.5)),
    Case("PNG without EXIF", "F2", "arc", ch.converted(".png", "RGB")),
    Case("16-bit TIFF", "F2", "arc", ch.converted(".tif", "RGB16")),
    Case("printer's inks", "F2", "arc", ch.converted(".tif", "CMYK")),
    Case("grey", "F2", "arc", ch.converted(".png", "L")),
    Case("names repeat in folders", "F2", "arc", ch.into_folders("left", "right")),
    Case("names of other scripts", "F2", "arc", ch.unicode_names),
    Case("strong distortion", "F2", "lens", as_it_is),
    Case("true poses", "F2", "arc", ch.poses_file()),
    Case("poses with axes of another tool", "F2", "arc", ch.poses_file(axes=False), "refused", (*SFM, "scale")),
    Case("poses of other photos", "F2", "arc", ch.poses_file(names="DSC_{}".format), "refused", ("ingest",), "no pose"),
    Case("poses of a tracker", "F2", "arc", ch.poses_file(drifting), "either", SFM),
    # F3: a free gauge that is fixed in silence
    Case("no source of scale", "F3", "arc", NO_MARKER, "refused", ("scale",), "scale"),
    Case("poses without a unit", "F3", "arc", ch.several(NO_MARKER, ch.poses_file(metric=None)), "refused", ("scale",)),
    Case("poses in centimetres called metres", "F3", "arc", ch.poses_file(scaled(100)), "refused", ("scale",)),
    Case("marker said to be twice as large, with depth", "F3", "depth",
         ch.card(marker={"dictionary": "DICT_4X4_50", "size_m": 0.16}), "refused", ("scale",)),
    Case("scattered poses", "F3", "arc", ch.poses_file(scattered), "refused", (*SFM, "scale")),
    Case("scale from depth", "F3", "depth", NO_MARKER),
    Case("depth in metres called millimetres, with marker", "F3", "depth", ch.depth_times(0.1), "refused", ("scale",)),
    # F4: a resize that nobody sees
    Case("depth at half the size", "F4", "depth", ch.several(NO_MARKER, ch.depth_times(1, 0.5))),
    Case("masks at half the size", "F4", "arc", ch.masked(ch.box_mask(0, 0, 0.2, 1, 0.5))),
    Case("JPEG quality 15", "F4", "arc", EDIT(lambda k, p: p, quality=15), "either", (*SFM, "scale")),
    Case("enlarged twice", "F4", "arc", EDIT(ch.resized(lambda k: 2.0))),
    Case("reduced to 160 px", "F4", "arc", EDIT(ch.resized(lambda k: 0.5)), "either", (*SFM, "scale")),
    # F5: memory without bound
    Case("picture bomb beside the photos", "F5", "arc", ch.bomb),
    # F6: files that are not whole
    Case("a third truncated", "F6", "arc", ch.damaged(lambda b: b[: len(b) // 2], 3), "either", (*SFM, "scale")),
    Case("one empty file", "F6", "arc", ch.damaged(lambda b: b"", 14)),
    Case("all truncated", "F6", "arc", ch.damaged(lambda b: b[:900], 1), "refused", ("ingest",), "can be used"),
    Case("film", "F6", "video", as_it_is),
    Case("film cut short", "F6", "video", ch.cut_video(0.6), "either", ("ingest", *SFM)),
    # F10: capability assumed
    Case("marker dictionary that does not exist", "F10", "arc",
         ch.card(marker={"dictionary": "DICT_9X9", "size_m": 0.08}), "refused", ("scale", "ingest"), "DICT"),
    Case("unknown field in capture.yaml", "F10", "arc", ch.card(markers=1), "refused", ("ingest",), "marker"),
    # F11: masks too tight or too many
    Case("mask hides the table", "F11", "arc", ch.masked(ch.box_mask(0.1, 0.05, 1, 0.95)), "either", (*SFM, "scale")),
    Case("mask hides everything", "F11", "arc", ch.masked(ch.box_mask(0, 0, 1, 1)), "refused", ("sfm",)),
    Case("gripper masked in every photo", "F11", "arc",
         ch.several(EDIT(ch.overlay(0.7, 0.3, 1, 0.7)), ch.masked(ch.box_mask(0.7, 0.3, 1, 0.7)))),
    Case("gripper masked in every third photo", "F11", "arc",
         ch.several(EDIT(ch.overlay(0.7, 0.3, 1, 0.7)), ch.masked(ch.box_mask(0.7, 0.3, 1, 0.7), every=3))),
    Case("gripper masked too tightly", "F11", "arc",
         ch.several(EDIT(ch.overlay(0.7, 0.3, 1, 0.7)), ch.masked(ch.box_mask(0.75, 0.35, 0.95, 0.65)))),
    Case("mask of another shape", "F11", "arc",
         ch.masked(lambda k, h, w: np.zeros((h, h), np.uint8)), "refused", ("ingest",), "aspects differ"),
)  # fmt: skip
