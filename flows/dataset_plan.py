# SPDX-License-Identifier: Apache-2.0
"""A dataset's YAML: which captures, with which options, where to, how many at once."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from real2sim.errors import UsageError
from real2sim.flows.config import Setting, find_config, nearest
from real2sim.flows.digest import canonical_json, sha256_json
from real2sim.flows.graph import SCENE, External
from real2sim.flows.rundir import Request
from real2sim.flows.sources import source_digests
from real2sim.flows.store import Store

CAPTURE_KEYS = ("path", "name", "options", "allow", "poses")


@dataclass(frozen=True)
class Scene:
    """One capture of a dataset and where its run goes."""

    name: str
    request: Request

    def key(self) -> str:
        """Digest of everything that decides how this scene ends: the capture's content, options, and the program."""
        store, request = Store(self.request.store), self.request
        inputs = [
            External.take(p, store, (request.run, request.store)).digest for p in (request.capture, request.poses) if p
        ]
        store.hashes.save()
        options = [[s.stage, s.option, repr(s.value)] for s in request.settings]
        config = request.config.read_text() if request.config else None
        programs = {stage.name: source_digests(stage.module) for stage in SCENE.stages}
        return sha256_json([inputs, options, config, sorted(request.allow), programs])


@dataclass(frozen=True)
class Dataset:
    """name: for people; out: folder of runs and index; workers: scenes at once; timeout_s: of one scene [s];
    retries: of a scene that ran short of memory, disk or time; max_refused: share of scenes above which the whole build
    counts as failed; gpu_slots: scenes that may use a GPU at once, under Prefect (0: not limited)."""

    name: str
    out: Path
    scenes: tuple[Scene, ...]
    workers: int = 1
    timeout_s: float = 7200.0
    retries: int = 1
    max_refused: float = 1.0
    gpu_slots: int = 0


def read_dataset(path: Path) -> Dataset:
    """Read a dataset's YAML; raises UsageError naming the file, the field and what would be right."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: not a readable YAML file ({error}).") from error
    known = ("captures", "config", *(f.name for f in fields(Dataset) if f.name != "scenes"))
    _check_keys(data, known, path, "the file")
    for name in ("name", "out", "captures"):
        if not data.get(name):
            raise UsageError(f"{path}: {name} is missing. A dataset has a name, a folder out, and captures.")
    out = (path.parent / str(data["out"])).resolve()
    config = _config(data.get("config"), path)
    scenes = _scenes(data["captures"], path, out, config)
    numbers = {name: _number(data[name], path, name) for name in ("timeout_s", "max_refused") if name in data}
    counts = {
        name: int(_number(data[name], path, name)) for name in ("workers", "retries", "gpu_slots") if name in data
    }
    if counts.get("workers", 1) < 1:
        raise UsageError(f"{path}: workers must be 1 or more, received {counts['workers']}.")
    return Dataset(str(data["name"]), out, scenes, **counts, **numbers)  # type: ignore[arg-type]


def _check_keys(data: Any, known: tuple[str, ...], path: Path, where: str) -> None:
    if not isinstance(data, dict):
        raise UsageError(f"{path}: {where}: expected `key: value`, received {data!r}.")
    for key in data:
        if key not in known:
            raise UsageError(
                f"{path}: {where}: unknown key {key!r}. Did you mean {nearest(str(key), known)!r}? Keys: {', '.join(known)}."
            )


def _config(name: Any, path: Path) -> Path | None:
    if name is None:
        return None
    beside = path.parent / str(name)
    return beside.resolve() if beside.is_file() else find_config(str(name)).absolute()


def _scenes(rows: Any, path: Path, out: Path, config: Path | None) -> tuple[Scene, ...]:
    if not isinstance(rows, list):
        raise UsageError(f"{path}: captures must be a list, received {rows!r}.")
    scenes: dict[str, Scene] = {}
    for index, row in enumerate(rows):
        where = f"captures[{index}]"
        row = {"path": row} if isinstance(row, str) else row
        _check_keys(row, CAPTURE_KEYS, path, where)
        if not isinstance(row.get("path"), str):
            raise UsageError(f"{path}: {where}.path: expected a path or a pattern, received {row.get('path')!r}.")
        for capture in _matches(path.parent / row["path"], path, where):
            name = str(row.get("name") or Path(capture).stem)
            if name in scenes:
                raise UsageError(
                    f"{path}: {where}: two captures are named {name!r}: {scenes[name].request.capture} and {capture}."
                    " Give one a name."
                )
            scenes[name] = Scene(name, _request(row, name, Path(capture), path, out, config))
    return tuple(scenes.values())


def _matches(pattern: Path, path: Path, where: str) -> list[str]:
    """Captures of a path or a pattern, in name order. A path that is not there is a scene that will be refused."""
    text = os.path.abspath(pattern)
    if not glob.has_magic(text):
        return [text]
    found = [p for p in sorted(glob.glob(text)) if not os.path.basename(p).startswith(".")]
    if not found:
        raise UsageError(f"{path}: {where}: {text} matches nothing. Paths are relative to the YAML file.")
    return found


def _request(row: dict[str, Any], name: str, capture: Path, path: Path, out: Path, config: Path | None) -> Request:
    settings = []
    for option, value in (row.get("options") or {}).items():
        stage, dot, field = str(option).partition(".")
        if not dot:
            raise UsageError(f"{path}: {name}: options are stage.option: value, received {option!r}.")
        settings.append(Setting(stage, field, value, f"{path}: {name}: {canonical_json({option: value})}"))
    poses = (path.parent / row["poses"]).resolve() if row.get("poses") else None
    run = out / "scenes" / name
    return Request(capture, run, out / ".real2sim", config, tuple(settings), tuple(row.get("allow") or ()), poses)


def _number(value: Any, path: Path, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise UsageError(f"{path}: {name}: expected a number that is not negative, received {value!r}.")
    return float(value)
