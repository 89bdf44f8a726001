# SPDX-License-Identifier: Apache-2.0
"""Find an image by the name that a person or another tool gives it: by path, path without suffix, name or stem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

_KEYS: tuple[Callable[[PurePosixPath], str], ...] = (
    str,  # "./images/a.jpg" is "images/a.jpg"
    lambda path: str(path.with_suffix("")),
    lambda path: path.name,
    lambda path: path.stem,
)


class NameIndex:
    """The names of files, found by the first of the four keys under which exactly one of them matches."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: list[dict[str, list[str]]] = [{} for _ in _KEYS]
        for name in names:
            for key, table in zip(_KEYS, self._names):
                table.setdefault(key(PurePosixPath(name)), []).append(name)

    def find(self, wanted: str) -> str | None:
        """The one name that fits, or None where none does, or more than one."""
        for key, table in zip(_KEYS, self._names):
            found = table.get(key(PurePosixPath(wanted)), [])
            if len(found) == 1:
                return found[0]
        return None
