# SPDX-License-Identifier: Apache-2.0
"""The source that a stage runs: its module and every module of ours that it imports, directly or not.

The rule, a safety net under each stage's VERSION: import statements are read (not run) from the syntax tree, at any
depth of a function, and followed through the packages `OURS` and the stage's own package. A compiled extension counts
by its bytes. Names imported at run time by a string are not seen: there the stage's VERSION has to be raised.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

OURS = ("real2sim.stages", "real2sim.sim", "real2sim.datasets")


def source_digests(module: str) -> dict[str, str]:
    """SHA-256 of the file of each module that a stage runs, by module name, sorted."""
    packages = (*OURS, module.rpartition(".")[0] or module)
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        origin = None if name in found else _origin(name)
        if origin is None:
            continue
        digest, imported = _read(name, origin)
        found[name] = digest
        waiting += [n for n in imported if n in packages or n.startswith(tuple(p + "." for p in packages))]
    return dict(sorted(found.items()))


def _origin(name: str) -> Path | None:
    """The file of a module; None where the name is no module (a function of one) or has no file (a bare folder)."""
    spec = _find(name)
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.has_location else None


@functools.cache
def _find(name: str) -> ModuleSpec | None:
    """Where a module would be imported from. Unlike importlib's find_spec, this imports no parent of it."""
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)
    package = _find(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    found = (finder.find_spec(name, package.submodule_search_locations) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


@functools.cache
def _read(name: str, origin: Path) -> tuple[str, tuple[str, ...]]:
    data = origin.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if origin.name.endswith(tuple(EXTENSION_SUFFIXES)):
        return digest, ()
    package = name if origin.name == "__init__.py" else name.rpartition(".")[0]
    return digest, tuple(sorted(set(_imports(ast.parse(data, origin), package))))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Every module name, with its parent packages, that an import statement may load."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                yield from _with_parents(f"{base}.{alias.name}")


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
