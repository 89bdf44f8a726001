# SPDX-License-Identifier: Apache-2.0
"""The content-addressed store of finished stages. It knows nothing of graphs, configs or Prefect.

```
objects/<stage>/<k2>/<key>/   an artifact: the stage's files and manifest.json; appears by one rename, never changes
scratch/<stage>/<key>/        checkpoints; survives a crash, found again by its key, gone when the artifact is there
tmp/<id>/, tmp/<id>.lock      half-built artifacts; swept once the lock of their owner is free
locks/<stage>/<key>           one computation per key (flock)
refs/<run>/<stage>.json       what a run last had of a stage, for people
hashes.json, options.json     SHA-256 of files by identity, resolved options by source: caches that only save time
```
All on one file system, so that publishing is: files to disk, manifest to disk, one rename, folder to disk.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real2sim.flows import locks
from real2sim.flows.digest import (
    FileDigest,
    HashCache,
    JsonCache,
    digest_folder,
    listing_digest,
    sha256_json,
    sync,
    write_atomic,
)

SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """A finished stage: where its files are and what its manifest says."""

    stage: str
    key: str
    path: Path
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 over its files' paths and contents, the manifest left out."""
        return str(self.manifest["digest"])

    def digest_without(self, paths: Collection[str]) -> str:
        """The digest of its files but these."""
        return listing_digest([FileDigest(*row) for row in self.manifest["files"] if row[0] not in paths])


class Store:
    """One store directory. Any number of processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).absolute()
        self.hashes = HashCache(self.root / "hashes.json")
        self.options = JsonCache(self.root / "options.json")

    def find(self, stage: str, key: str, damaged: Callable[[str], None]) -> Artifact | None:
        """The artifact of a key, or None. One whose files are not what its manifest says is told to `damaged`."""
        path = self._object(stage, key)
        if not path.is_dir():
            return None
        try:
            manifest = _read_manifest(path / MANIFEST, key)
            files = digest_folder(path, self.hashes, skip=frozenset({MANIFEST}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged(f"{path}: {error}")
            return None
        if listing_digest(files) != manifest["digest"]:
            damaged(f"{path}: {_first_difference(manifest['files'], [[f.path, f.size, f.sha256] for f in files])}")
            return None
        return Artifact(stage, key, path, manifest)

    def lock(self, stage: str, key: str, waiting: Callable[[str], None]) -> Any:
        """Context manager: hold a key's computation; `waiting` is told who computes it meanwhile."""
        return locks.exclusive(self.root / "locks" / stage / key, waiting)

    def holder(self, stage: str, key: str) -> str | None:
        """Who computes a key now, or None."""
        return locks.holder(self.root / "locks" / stage / key)

    def scratch(self, stage: str, key: str) -> Path:
        """The key's folder for checkpoints."""
        path = self.root / "scratch" / stage / key
        path.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """An empty folder to build in, gone afterwards unless it was published."""
        name = uuid.uuid4().hex
        path = self.root / "tmp" / name
        with locks.exclusive(path.with_suffix(".lock"), remove=True):
            path.mkdir()
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)

    def publish(self, draft: Path, recipe: dict[str, Any], report: dict[str, Any]) -> Artifact:
        """Make a draft the artifact of its recipe's key. The caller holds the key's lock.

        recipe: what the key is the SHA-256 of; report: what else the manifest says. A damaged artifact in the way is
        removed first. Raises ValueError where the draft holds a link or a file named manifest.json.
        """
        stage, key = str(recipe["stage"]), sha256_json(recipe)
        if (draft / MANIFEST).exists():
            raise ValueError(f"{draft / MANIFEST}: the store writes this file; a stage must not.")
        files = digest_folder(draft, self.hashes)
        manifest = {
            **recipe,
            **report,
            "key": key,
            "recipe": sorted(recipe),
            "digest": listing_digest(files),
            "files": [[f.path, f.size, f.sha256] for f in files],
        }
        for folder, _, names in os.walk(draft, topdown=False):
            for name in names:
                sync(Path(folder, name))
            sync(Path(folder))
        write_atomic(draft / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False))
        target = self._object(stage, key)
        self._make_folder(target.parent)
        if target.exists():
            self._discard(target)
        draft.rename(target)
        sync(target.parent)
        self.clear_scratch(stage, key)
        return Artifact(stage, key, target, manifest)

    def begun(self, stage: str, key: str) -> bool:
        """Whether a key's computation left checkpoints."""
        return any((self.root / "scratch" / stage / key).glob("*"))

    def clear_scratch(self, stage: str, key: str) -> None:
        """Remove a key's checkpoints; they are of no use once its artifact is there."""
        shutil.rmtree(self.root / "scratch" / stage / key, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what dead processes left: half-built folders, and checkpoints of artifacts that are there."""
        tmp = self.root / "tmp"
        for lock in tmp.glob("*.lock"):
            with locks.if_free(lock) as dead:
                if dead:
                    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        for folder in tmp.glob("*"):
            if folder.is_dir() and not folder.with_suffix(".lock").exists():
                shutil.rmtree(folder, ignore_errors=True)
        for scratch in self.root.glob("scratch/*/*"):
            stage, key = scratch.parent.name, scratch.name
            if (self._object(stage, key) / MANIFEST).exists() and self.holder(stage, key) is None:
                self.clear_scratch(stage, key)

    def write_ref(self, run: str, name: str, data: dict[str, Any]) -> None:
        """Say what a run last had of a stage."""
        path = self.root / "refs" / run / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(data, indent=1, ensure_ascii=False))

    def read_ref(self, run: str, name: str) -> dict[str, Any]:
        """What a run last had of a stage; empty where it had nothing, or where the file is damaged."""
        try:
            data = json.loads((self.root / "refs" / run / f"{name}.json").read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _object(self, stage: str, key: str) -> Path:
        return self.root / "objects" / stage / key[:2] / key

    def _make_folder(self, path: Path) -> None:
        """Make a folder and put its entry, and those of the parents made with it, on the disk."""
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync(folder.parent)

    def _discard(self, path: Path) -> None:
        """Take a damaged artifact out of sight by one rename, then remove it."""
        with self.draft() as grave:
            path.rename(grave / path.name)


def _read_manifest(path: Path, key: str) -> dict[str, Any]:
    """Read a manifest that proves itself: its recipe hashes to its key, its file list to its digest."""
    manifest = json.loads(path.read_text())
    if sha256_json({name: manifest[name] for name in manifest["recipe"]}) != key:
        raise ValueError("its manifest is of another key")
    if sha256_json(sorted(manifest["files"])) != manifest["digest"]:
        raise ValueError("its manifest lists other files than it has the digest of")
    return dict(manifest)


def _first_difference(expected: list[list[Any]], found: list[list[Any]]) -> str:
    before, after = ({row[0]: row for row in rows} for rows in (expected, found))
    name = min(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    how = "is missing" if name not in after else "was added" if name not in before else "has changed"
    return f"file {name!r} {how}"
