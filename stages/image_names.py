# SPDX-License-Identifier: Apache-2.0
"""Match images with the names that a person or another tool gives them: by path, path without suffix, name or stem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

_KEYS: tuple[Callable[[PurePosixPath], str], ...] = (
    str,  # "./images/a.jpg" is "images/a.jpg"
    lambda path: str(path.with_suffix("")),
    lambda path: path.name,
    lambda path: path.stem,
)


def match_names(images: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Image -> name, one to one. Exact paths first; a weaker key counts only where it is unique on both sides.

    So "1.png" serves "a/1.jpg" alone, and neither of "a/1.jpg" and "b/1.jpg".
    """
    free_images, free_names = list(dict.fromkeys(images)), list(dict.fromkeys(names))
    found: dict[str, str] = {}
    for key in _KEYS:
        images_by, names_by = _by_key(free_images, key), _by_key(free_names, key)
        for value, ours in images_by.items():
            theirs = names_by.get(value, [])
            if len(ours) == len(theirs) == 1:
                found[ours[0]] = theirs[0]
        taken = set(found.values())
        free_images = [image for image in free_images if image not in found]
        free_names = [name for name in free_names if name not in taken]
    return found


def _by_key(names: Iterable[str], key: Callable[[PurePosixPath], str]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = defaultdict(list)
    for name in names:
        table[key(PurePosixPath(name))].append(name)
    return table
