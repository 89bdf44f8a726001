# SPDX-License-Identifier: Apache-2.0
"""Attempts at poses from matches: the usual one, wider ones where it poses too few frames, and a second to compare."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2  # noqa: F401  before pycolmap: the other order makes later PNG writing abort
import numpy as np
import pycolmap

from real2sim.stages.contract import Progress
from real2sim.stages.sfm_agreement import COMPARABLE, Agreement, compare_models, other_starts, pairs_that_follow
from real2sim.stages.sfm_database import PairStatistics, read_statistics, verify_again
from real2sim.stages.sfm_diagnosis import mostly_turning
from real2sim.stages.sfm_pycolmap import map_incrementally

SECOND_SEED = 1
STARTS = 4  # other starts that are tried before two reconstructions are said to differ
DEFAULT_FOCAL = 1.2  # over the long side, where a lens is set free

Database = Callable[[], Path]


@dataclass
class Attempt:
    """One way of reconstructing: what was done, the matches it used, and the models it found, best first."""

    what: str
    database: Path
    models: list[pycolmap.Reconstruction]

    @property
    def registered(self) -> int:
        return int(self.models[0].num_reg_images()) if self.models else 0

    def row(self) -> dict[str, Any]:
        return {"attempt": self.what, "registered": self.registered, "models": len(self.models)}


def attempt_until(
    enough: int,
    database: Path,
    wider: Database,
    images: Path,
    folder: Path,
    groups: Sequence[dict[str, Any]],
    min_matches: int,
    refine_principal_point: bool,
    progress: Progress,
) -> list[Attempt]:
    """Attempts in the order they were made, ending with the first that poses `enough` frames.

    wider: makes a database with more features and matches; called only where it is needed.
    """
    made: list[Attempt] = []
    statistics = read_statistics(database)
    for what, matches, loose in _ways(database, wider, folder, groups, min_matches):
        if made:
            if mostly_turning(statistics):
                break  # no search finds parallax that is not there
            progress.log(f"{made[-1].registered} frames posed, fewer than {enough}: trying again with {what}")
        db = matches()
        models = map_incrementally(db, images, folder / "models", refine_principal_point, progress, loose=loose)
        made.append(Attempt(what, db, models))
        if made[-1].registered >= enough:
            break
    return made


def best(attempts: Sequence[Attempt]) -> Attempt:
    """The attempt that posed most frames; of equals the first."""
    return max(attempts, key=lambda a: a.registered)


def _ways(
    database: Path, wider: Database, folder: Path, groups: Sequence[dict[str, Any]], min_matches: int
) -> Iterator[tuple[str, Database, bool]]:
    yield "the usual search", lambda: database, False
    yield "a looser start", lambda: database, True
    if any(str(g["focal_source"]).startswith("exif") for g in groups):
        yield "focal lengths of EXIF left out", lambda: without_priors(database, folder, min_matches), True
    yield "more features and guided matching", wider, True


def without_priors(database: Path, folder: Path, min_matches: int) -> Path:
    """A copy of the database whose cameras start from a default lens, its pairs verified again without one."""
    copy = folder / "free.db"
    for leftover in folder.glob(copy.name + "*"):
        leftover.unlink()
    shutil.copyfile(database, copy)
    db = pycolmap.Database.open(copy)
    for camera in db.read_all_cameras():
        free = pycolmap.Camera.create_from_model_name(
            camera.camera_id,
            camera.model_name,
            DEFAULT_FOCAL * max(camera.width, camera.height),
            camera.width,
            camera.height,
        )
        free.has_prior_focal_length = False
        db.update_camera(free)
    db.close()
    verify_again(copy, folder / "free.txt", min_matches)
    return copy


def judge(
    database: Path,
    model: pycolmap.Reconstruction,
    images: Path,
    folder: Path,
    statistics: PairStatistics,
    refine_principal_point: bool,
    enough: float,
    progress: Progress,
) -> Agreement:
    """Reconstruct again from other starts and compare; and hold the matched pairs against the model."""
    pairs, against = pairs_that_follow(database, model)
    ids = {image.name: image.image_id for image in map(model.image, model.reg_image_ids())}
    share: float | None = None
    again, angle = 0, 180.0
    for start in other_starts(statistics, ids, set(ids), STARTS):
        models = map_incrementally(
            *(database, images, folder / "second", refine_principal_point, progress),
            loose=True,
            start=start,
            seed=SECOND_SEED,
            only_first=True,
        )
        posed = int(models[0].num_reg_images()) if models else 0
        if posed < COMPARABLE * len(ids):
            again = max(again, posed) if share is None else again
            continue
        found, turned = compare_models(model, models[0])
        if share is None or found >= share:
            share, again, angle = found, posed, turned
        if share >= enough:
            break
    return Agreement(share, again, angle, pairs, pairs - len(against), against)


def components(statistics: PairStatistics, names: Sequence[str]) -> list[list[str]]:
    """Groups of images that no verified pair connects, largest first: places that share nothing."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for a, b in statistics.inliers:
        parent[root(a)] = root(b)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(root(name), []).append(name)
    order = np.argsort([-len(g) for g in groups.values()], kind="stable")
    members = list(groups.values())
    return [members[i] for i in order]
