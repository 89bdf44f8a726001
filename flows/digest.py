# SPDX-License-Identifier: Apache-2.0
"""Content digests: of JSON values, of files, of folders. Names and times never stand in for content.

A file's SHA-256 is remembered under (device, inode, size, mtime, ctime), all in nanoseconds. Every write through the
file system moves ctime, and no program can set it back, so an unchanged identity means unchanged content. A file whose
ctime is within `SETTLE_NS` of now (or in the future, where a clock jumped) is hashed each time: a second write could
still fall into the same tick of the file system's clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real2sim.errors import UsageError
from real2sim.flows import locks
from real2sim.stages.capture_layout import is_own_output

SETTLE_NS = 2_000_000_000  # the coarsest clock of a common file system (FAT) ticks every 2 s
CACHE_ENTRIES = 100_000  # about 17 MB on disk; beyond it only what this process looked at is kept
HASH_THREADS = 4  # hashing leaves the interpreter lock; more threads only fight over the disk


@dataclass(frozen=True, order=True)
class FileDigest:
    """One file of a folder: its path relative to the folder, with forward slashes, its size [bytes] and SHA-256."""

    path: str
    size: int
    sha256: str

    @staticmethod
    def of_text(path: str, text: str) -> FileDigest:
        """The digest of a file that would hold a text."""
        data = text.encode()
        return FileDigest(path, len(data), hashlib.sha256(data).hexdigest())


def canonical_json(data: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, NaN and infinity refused."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(data: Any) -> str:
    """SHA-256 of a value's canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


def listing_digest(files: list[FileDigest]) -> str:
    """The digest of a folder: of its sorted (path, size, sha256) list."""
    return sha256_json([[f.path, f.size, f.sha256] for f in sorted(files)])


class JsonCache:
    """Values that can be found again some other way, remembered between runs in one JSON file; losing it costs time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._used: dict[str, Any] = {}
        self._known = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def get(self, key: str) -> Any | None:
        value = self._used.get(key, self._known.get(key))
        if value is not None:
            self._used[key] = value
        return value

    def put(self, key: str, value: Any) -> None:
        self._used[key] = value

    def save(self) -> None:
        """Write what was learnt; where that cannot be written, the next run learns it again."""
        if self._used.keys() <= self._known.keys():
            return
        merged = {**self._read(), **self._used}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, json.dumps(merged if len(merged) <= CACHE_ENTRIES else self._used))
        except OSError:
            return
        self._known = merged


class HashCache(JsonCache):
    """SHA-256 of files by their identity."""

    def file(self, path: Path) -> tuple[int, str]:
        """Size [bytes] and SHA-256 of a file, hashed only where its identity is new."""
        with path.open("rb") as stream:
            before = os.fstat(stream.fileno())
            identity = _identity(before)
            known = self.get(identity)
            if not isinstance(known, str):
                known = hashlib.file_digest(stream, "sha256").hexdigest()
                if _identity(os.fstat(stream.fileno())) == identity and _settled(before):
                    self.put(identity, known)
            return before.st_size, known


def _identity(stat: os.stat_result) -> str:
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def _settled(stat: os.stat_result) -> bool:
    return stat.st_ctime_ns + SETTLE_NS < time.time_ns()


def digest_folder(root: Path, cache: HashCache, skip: frozenset[str] = frozenset()) -> list[FileDigest]:
    """Digest every file under an artifact's folder except those whose relative path is in `skip`.

    Raises ValueError where the folder holds a link: an artifact is self-contained.
    """
    paths = [p for p in sorted(_walk(root, follow=False)) if p.relative_to(root).as_posix() not in skip]
    return _digest_paths(paths, root, cache)


def digest_input(path: Path, cache: HashCache, leave_out: tuple[Path, ...] = ()) -> list[FileDigest]:
    """Digest what a person brought: a file, or a folder followed through links.

    Hidden files and folders (.DS_Store, .git) and the folders in `leave_out` (a run or a store inside the capture)
    and any other run or bundle are no part of it, as they are none for ingest. Raises UsageError where nothing is there.
    """
    if not path.exists():
        raise UsageError(f"{path}: expected a folder or a file, but nothing is there. Check the path.")
    apart = {os.path.realpath(p) for p in leave_out}
    try:
        if path.is_file():
            return _digest_paths([path], path.parent, cache)
        return _digest_paths(sorted(_walk(path, follow=True, apart=apart)), path, cache)
    except PermissionError as error:
        raise UsageError(f"{error.filename}: every file of an input must be readable; this one is not.") from error


def _walk(root: Path, *, follow: bool, apart: set[str] | None = None) -> Iterator[Path]:
    visited = set(apart or ()) | {os.path.realpath(root)}
    for folder, names, files in os.walk(root, followlinks=follow):
        if follow:
            names[:] = [n for n in names if not n.startswith(".") and not is_own_output(os.path.join(folder, n))]
            names[:] = [n for n in names if _first_visit(os.path.join(folder, n), visited)]
        for name in files if follow else files + names:
            path = Path(folder, name)
            if not follow and path.is_symlink():
                raise ValueError(f"{path}: an artifact holds no links.")
            if path.is_file() and not (follow and name.startswith(".")):
                yield path


def _first_visit(folder: str, visited: set[str]) -> bool:
    real = os.path.realpath(folder)
    if real in visited:
        return False
    visited.add(real)
    return True


def _digest_paths(paths: list[Path], root: Path, cache: HashCache) -> list[FileDigest]:
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        digests = list(pool.map(cache.file, paths))
    return [FileDigest(p.relative_to(root).as_posix(), *d) for p, d in zip(paths, digests, strict=True)]


def write_atomic(path: Path, text: str) -> None:
    """Replace a file by one rename, after its bytes are on the disk.

    The draft beside it has one name and is locked while it is written, so a killed process leaves at most one draft,
    which the next writer takes over.
    """
    draft = path.with_name(f".{path.name}.draft")
    with locks.exclusive(draft) as fd:
        try:
            with open(fd, "w", encoding="utf-8", closefd=False) as stream:
                stream.truncate()
                stream.write(text)
                stream.flush()
                os.fsync(fd)
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Put a file's bytes, or a folder's entries, on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
