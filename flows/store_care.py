# SPDX-License-Identifier: Apache-2.0
"""Care of a store: what it holds, whether it is what it says, and what no run refers to any more."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real2sim.errors import UsageError
from real2sim.flows import locks
from real2sim.flows.digest import HashCache
from real2sim.flows.store import MANIFEST, Store

DAY_S = 86400.0


@dataclass
class Usage:
    """Files and bytes of one stage: finished, of them those that no run refers to, and checkpoints."""

    stage: str
    artifacts: int = 0
    size: int = 0
    unused: int = 0
    unused_size: int = 0
    scratch_size: int = 0

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass
class Collected:
    """What `collect` removed, or would: paths with sizes [bytes]."""

    removed: list[tuple[Path, int]] = field(default_factory=list)
    kept_young: int = 0
    forgotten_runs: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(size for _, size in self.removed)


def find_store(path: Path) -> Store:
    """The store of a path: a store itself, a run's, or the folder that holds one; UsageError where there is none."""
    from real2sim.flows.rundir import Request

    if (path / "run.json").is_file():
        return Store(Request.read(path).store)
    for folder in (path, path / ".real2sim"):
        if (folder / "objects").is_dir():
            return Store(folder)
    raise UsageError(f"{path}: neither a store, nor a run, nor a folder with .real2sim. Give `--store DIR`'s folder.")


def usage(store: Store) -> list[Usage]:
    """What each stage takes on the disk."""
    live, rows = live_keys(store), dict[str, Usage]()
    for stage, key, path in artifacts(store):
        row, size = rows.setdefault(stage, Usage(stage)), folder_size(path)
        row.artifacts += 1
        row.size += size
        if (stage, key) not in live:
            row.unused += 1
            row.unused_size += size
    for folder in store.root.glob("scratch/*/*"):
        rows.setdefault(folder.parent.name, Usage(folder.parent.name)).scratch_size += folder_size(folder)
    return list(rows.values())


def verify(store: Store, report: Callable[[int, int, str], None]) -> list[str]:
    """Hash every artifact anew, whatever is remembered of its files; what is damaged, in words.

    report(done, total, stage). A damaged artifact is built again by the next run that needs it; nothing is changed.
    """
    fresh = Store(store.root)
    fresh.hashes = HashCache(store.root / "tmp" / "nothing-is-remembered.json")
    found, damage = list(artifacts(store)), list[str]()
    for k, (stage, key, _) in enumerate(found):
        fresh.find(stage, key, damage.append)
        report(k + 1, len(found), stage)
    return damage


def collect(store: Store, *, min_age_s: float = DAY_S, dry_run: bool = False) -> Collected:
    """Remove what no run refers to and what dead processes left, if it is older than min_age_s.

    A run refers to the artifacts that it last had, as long as its folder is there. Age protects a run that has just made
    an artifact and not yet said so; locks protect what is being computed.
    """
    done, now = Collected(), time.time()
    if not dry_run:
        store.sweep()
    done.forgotten_runs = _forget_runs(store, dry_run)
    live = live_keys(store, gone=set(done.forgotten_runs))
    scratch = [(p.parent.name, p.name, p) for p in store.root.glob("scratch/*/*")]
    for stage, key, path in [*artifacts(store), *scratch]:
        is_scratch = path.parent.parent.name == "scratch"
        if ((stage, key) in live and not is_scratch) or store.holder(stage, key) is not None:
            continue
        if now - path.stat().st_mtime < min_age_s:
            done.kept_young += 1
            continue
        done.removed.append((path, folder_size(path)))
        if not dry_run:
            _remove(store, stage, key, path)
    if not dry_run:
        _drop_idle_locks(store)
    return done


def live_keys(store: Store, gone: set[str] = frozenset()) -> set[tuple[str, str]]:  # type: ignore[assignment]
    """(stage, key) of the artifacts that runs refer to; runs in `gone` are left out."""
    live = set()
    for path in store.root.glob("refs/*/*.json"):
        if path.parent.name in gone:
            continue
        ref = store.read_ref(path.parent.name, path.stem)
        for part in ("done", "failed"):
            if isinstance(ref.get(part), dict) and "key" in ref[part]:
                live.add((path.stem, str(ref[part]["key"])))
    return live


def artifacts(store: Store) -> Iterator[tuple[str, str, Path]]:
    """(stage, key, folder) of everything published."""
    for path in sorted(store.root.glob("objects/*/*/*")):
        if path.is_dir():
            yield path.parents[1].name, path.name, path


def folder_size(path: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)


def _forget_runs(store: Store, dry_run: bool) -> list[str]:
    """Runs whose folder is gone; those that never said where they are stay."""
    gone = []
    for folder in sorted(store.root.glob("refs/*")):
        where = store.read_ref(folder.name, "where").get("run")
        if where is not None and not (Path(where) / "run.json").is_file():
            gone.append(folder.name)
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return gone


def _remove(store: Store, stage: str, key: str, path: Path) -> None:
    """Take a folder out of sight by one rename, under its key's lock, then remove it."""
    with store.lock(stage, key, waiting=lambda _: None), store.draft() as grave:
        if path.exists():
            path.rename(grave / path.name)


def _drop_idle_locks(store: Store) -> None:
    for lock in store.root.glob("locks/*/*"):
        with locks.if_free(lock):
            pass


def orphans(store: Store) -> list[Path]:
    """What should not be there once no process works: drafts, artifacts without manifest, checkpoints of what is done."""
    left = [p for p in store.root.glob("tmp/*")]
    left += [path for _, _, path in artifacts(store) if not (path / MANIFEST).is_file()]
    for folder in store.root.glob("scratch/*/*"):
        stage, key = folder.parent.name, folder.name
        if (store.root / "objects" / stage / key[:2] / key / MANIFEST).is_file():
            left.append(folder)
    return left
