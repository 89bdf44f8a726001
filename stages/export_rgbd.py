# SPDX-License-Identifier: Apache-2.0
"""RGB-D recordings as data sets write them: 7-Scenes (frame-*.color/depth/pose) and ScanNet (color/, depth/, pose/)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.stages.known_poses import KnownPose, PoseFile, WrongPose, rigid_pose

SEVEN_SCENES_DEPTH_K = [[585.0, 0.0, 320.0], [0.0, 585.0, 240.0], [0.0, 0.0, 1.0]]  # of its page, for all scenes
MAX_TEXT = 4096  # bytes of a file of 16 numbers


def is_seven_scenes(capture: Path, photos: Sequence[str]) -> bool:
    """Whether photos are named frame-000000.color.png with a .pose.txt beside them."""
    colour = [p for p in photos if ".color." in p]
    return bool(colour) and _beside(capture / colour[0], ".pose.txt").is_file()


def read_seven_scenes(capture: Path, photos: Sequence[str]) -> tuple[PoseFile, dict[str, str], dict[str, str]]:
    """Poses (of the depth camera, by KinectFusion), depth maps by photo, and photos that are none, with the reason."""
    poses, depths = {}, {}
    colour = [p for p in photos if ".color." in p]
    for photo in colour:
        pose = _matrix(_beside(capture / photo, ".pose.txt"))
        if pose is not None:
            poses[photo] = KnownPose(pose)
        depth = _beside(capture / photo, ".depth.png")
        if depth.is_file():
            depths[photo] = depth.relative_to(capture).as_posix()
    aside = {p: "it is a depth map, not a photo" for p in photos if ".depth." in p}
    return PoseFile(capture, poses, metric=True, tracked=True), depths, aside


def is_scannet(capture: Path, photos: Sequence[str]) -> bool:
    """Whether there are color/ and pose/ with files of the same stems."""
    colour = [p for p in photos if p.startswith("color/")]
    return bool(colour) and (capture / "pose" / f"{Path(colour[0]).stem}.txt").is_file()


def read_scannet(capture: Path, photos: Sequence[str]) -> PoseFile:
    """Poses and the colour camera's intrinsics; frames whose tracking was lost have infinite poses and are left out."""
    poses, K = {}, _matrix(capture / "intrinsic" / "intrinsic_color.txt", rigid=False)
    K = K[:3, :3] if K is not None and K[0, 0] > 0 and K[1, 1] > 0 else None
    for photo in (p for p in photos if p.startswith("color/")):
        pose = _matrix(capture / "pose" / f"{Path(photo).stem}.txt")
        if pose is not None:
            poses[photo] = KnownPose(pose, K)
    return PoseFile(capture / "pose", poses, metric=True, tracked=True)


def _beside(photo: Path, ending: str) -> Path:
    return photo.with_name(photo.name.split(".color.")[0] + ending)


def _matrix(path: Path, rigid: bool = True) -> NDArray[np.float64] | None:
    """Sixteen numbers of a text file as [4, 4]; None where there is no file or tracking was lost."""
    if not path.is_file():
        return None
    try:
        values = np.array(path.read_bytes()[:MAX_TEXT].split(), np.float64)
        if values.size != 16:
            raise ValueError(f"{values.size} numbers")
        if not np.isfinite(values).all():
            return None
        return rigid_pose(values.reshape(4, 4)) if rigid else values.reshape(4, 4)
    except (OSError, ValueError, WrongPose) as error:
        raise CaptureError(
            f"{path}: expected a 4x4 matrix in text ({error}). Export it again, or remove it."
        ) from error
