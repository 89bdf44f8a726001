# SPDX-License-Identifier: Apache-2.0
"""File locks that the kernel drops when their holder dies (flock(2)): no lock is ever stale.

A lock file may be removed by whoever holds it, so after locking, the path must still lead to the locked inode.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SAID = 300  # bytes: a shorter text never leaves the end of a longer one behind
_held: set[int] = set()


def _forget_in_child() -> None:
    """A forked child (a data loader's worker) must not keep its parent's locks alive."""
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def exclusive(path: Path, waiting: Callable[[str], None] | None = None, *, remove: bool = False) -> Iterator[int]:
    """Hold the lock of a path, and yield its file descriptor.

    waiting: told once who holds it now, if anyone does. remove: the lock file is gone afterwards.
    """
    fd = _acquire(path, waiting)
    _held.add(fd)
    try:
        yield fd
    finally:
        if remove:
            path.unlink(missing_ok=True)
        if fd in _held:  # not in a forked child, which has closed it already
            _held.discard(fd)
            os.close(fd)


def _acquire(path: Path, waiting: Callable[[str], None] | None) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _try_lock(fd):
                if waiting is not None:
                    waiting(_describe(fd))
                    waiting = None
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_same_file(fd, path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def tell(fd: int, how_far: str) -> None:
    """Say beside the holder of a lock how far its work is, for `holder`."""
    os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "at": how_far}).ljust(SAID).encode(), 0)


def holder(path: Path) -> str | None:
    """Who holds the lock of a path ("process 41 on desk, 40%"), or None where it is free."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _try_lock(fd, fcntl.LOCK_SH) else _describe(fd)
    finally:
        os.close(fd)


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of an existing path if nobody does; yields whether it is held now. The file is removed after."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        mine = _try_lock(fd) and _is_same_file(fd, path)
        yield mine
        if mine:
            path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _describe(fd: int) -> str:
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
        return f"process {owner['pid']} on {owner['host']}" + (f", {owner['at']}" if owner.get("at") else "")
    except (ValueError, KeyError, TypeError):
        return "another process"
