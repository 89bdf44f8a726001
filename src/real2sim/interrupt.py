# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM end a long command within seconds, also while native code runs, and lose no finished stage."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_S = 3.0  # what Python code gets to unwind in; native code that does not return by then is cut off


@contextmanager
def interruptible(say: Callable[[], None]) -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGINT or SIGTERM; if that has not ended the block in `GRACE_S`, `say` and exit.

    Cutting the process off is safe: the kernel drops its locks, and the store sweeps what it left half-built.
    A second signal does not wait. To be used in the main thread.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {s: signal.signal(s, _raise) for s in (signal.SIGINT, signal.SIGTERM)}
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    ended = threading.Event()
    threading.Thread(target=_watch, args=(reader, ended, say), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.close()


def keep_handling() -> None:
    """Take SIGTERM back from a library that claimed it when it was imported, as glog inside pycolmap does."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is _raise and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _raise(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _watch(reader: socket.socket, ended: threading.Event, say: Callable[[], None]) -> None:
    """Wait, beside the main thread, for a signal's byte; then for the block to end, a second signal, or the grace."""
    with reader:
        watched = {int(signal.SIGINT), int(signal.SIGTERM)}
        while received := reader.recv(1):
            if received[0] in watched:
                reader.settimeout(GRACE_S)
                try:
                    again = bool(reader.recv(1))
                except TimeoutError:
                    again = True
                if again and not ended.is_set():
                    say()
                    os._exit(128 + received[0])
                return
