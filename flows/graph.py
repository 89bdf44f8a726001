# SPDX-License-Identifier: Apache-2.0
"""The scene graph: its stages, what each reads, how its key is made, and how one stage is produced.

A stage's key is the SHA-256 of its recipe: name, VERSION, resolved config, the digests of its inputs' *contents*, the
versions of the tools that its numbers come from, and the source that it runs (sources.py). Inputs enter by content, so
an upstream stage that runs again and gives the same bytes stops the wave there.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from real2sim.errors import TransientError, UsageError
from real2sim.flows import locks
from real2sim.flows.digest import FileDigest, digest_input, listing_digest, sha256_json
from real2sim.flows.memory import PeakMemory
from real2sim.flows.observer import Observer, Recorder
from real2sim.flows.sources import source_digests
from real2sim.flows.store import SCHEMA, Artifact, Store
from real2sim.stages.contract import Result

if TYPE_CHECKING:
    from real2sim.flows.config import Options

_TORCH_CPU = "DefaultCPUAllocator"  # torch on the CPU reports lack of memory as a RuntimeError naming its allocator


_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EEXIST, errno.ENOTDIR)  # of a place that a person chose


@dataclass(frozen=True)
class Stage:
    """One node of the graph.

    inputs: names of earlier stages, or of what the run brings from outside; those in `optional` may be absent.
    tools: distributions whose version decides the numbers. gates: the names of the gates that it measures.
    unread: input -> its files that the stage never opens, so that they may change without running it again.
    """

    name: str
    module: str
    inputs: tuple[str, ...]
    optional: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def load(self) -> ModuleType:
        """The stage's module: VERSION, Config, run."""
        return importlib.import_module(self.module)


@dataclass(frozen=True)
class Graph:
    """Stages in run order.

    result: the stage whose artifact holds the folder of the same name that the run hands over as its bundle.
    seal: called on that folder when the report was put into it.
    headlines: summary field -> the (stage, metric) pairs that it is read from; the latest stage that is there counts.
    foresee: called when a stage is done with its name, its artifact, all options by stage, and the store; what to say of
    the rest. It may raise TransientError.
    """

    stages: tuple[Stage, ...]
    result: str
    headlines: Mapping[str, tuple[tuple[str, str], ...]]
    seal: Callable[[Path], object] = lambda _: None
    foresee: Callable[[str, Path, Mapping[str, Mapping[str, Any]], Path], list[str]] = lambda *_: []

    @property
    def gates(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage.gates)


def _stage(name: str, *inputs: str, **more: Any) -> Stage:
    return Stage(name, f"real2sim.stages.{name}", inputs, **more)


def _index_again(bundle: Path) -> None:
    """List the run's report among the bundle's files, in place of the one it was made with."""
    from real2sim.sim.bundle import INDEX, write_index

    write_index(bundle, json.loads((bundle / INDEX).read_text(encoding="utf-8")))


def _foresee(stage: str, artifact: Path, options: Mapping[str, Mapping[str, Any]], place: Path) -> list[str]:
    from real2sim.flows.predict import foresee

    return foresee(stage, artifact, options, place)


SCENE = Graph(
    stages=(
        _stage("ingest", "capture", optional=("poses",), tools=("pillow", "opencv-python-headless", "pi-heif")),
        _stage(
            "sfm",
            "ingest",
            tools=("pycolmap",),
            gates=("registered", "reprojection", "parallax", "consistent", "pairs"),
            unread={"ingest": ("measures.json", "contact.png")},
        ),
        _stage("scale", "ingest", "sfm", tools=("opencv-python-headless",), gates=("scale",)),
        _stage("splat", "sfm", tools=("torch", "gsplat"), gates=("heldout",)),
        _stage("align", "sfm", "scale", "splat", gates=("level", "support")),
        _stage("mesh", "sfm", "splat", "align", tools=("scikit-image", "open3d")),
        _stage("segment", "sfm", "align", "mesh", tools=("opencv-python-headless", "scikit-image")),
        _stage("objects", "capture", "sfm", "align", "mesh", "segment", tools=("coacd", "trimesh", "mujoco")),
        _stage("collision", "mesh", "align", "objects", tools=("coacd", "trimesh")),
        _stage("prune", "sfm", "splat", gates=("pruned",)),
        _stage("lift", "sfm", "align", "prune", "segment", tools=("torch",)),
        _stage(
            "background",
            *("sfm", "splat", "align", "prune", "segment", "lift", "objects"),
            tools=("torch", "opencv-python-headless"),
        ),
        _stage(
            "bundle",
            *("ingest", "sfm", "scale", "splat", "align", "mesh", "collision", "prune"),
            *("objects", "background", "provenance"),
            tools=("mujoco",),
            gates=(
                *("agreement", "loads", "drop", "rerender"),
                *("masks", "watertight", "convex", "settle", "fall", "shake"),
            ),
        ),
    ),
    result="bundle",
    headlines={
        "frames": (("ingest", "frames"),),
        "registered": (("sfm", "registered"),),
        "psnr_heldout": (("splat", "psnr"), ("prune", "psnr_after"), ("background", "psnr")),
        "ssim_heldout": (("splat", "ssim"), ("prune", "ssim_after"), ("background", "ssim")),
        "gaussians": (("splat", "gaussians"), ("prune", "kept"), ("bundle", "gaussians")),
    },
    seal=_index_again,
    foresee=_foresee,
)


@dataclass(frozen=True)
class External:
    """Something that the run brings from outside: a path, and what was in it when its digest was taken."""

    path: Path
    files: tuple[FileDigest, ...]
    leave_out: tuple[Path, ...] = ()

    @staticmethod
    def take(path: Path, store: Store, leave_out: tuple[Path, ...] = ()) -> External:
        return External(path, tuple(digest_input(path, store.hashes, leave_out)), leave_out)

    @property
    def digest(self) -> str:
        return listing_digest(list(self.files))

    def digest_without(self, paths: Collection[str]) -> str:
        """The digest of the files but these."""
        return listing_digest([f for f in self.files if f.path not in paths])


@dataclass(frozen=True)
class Task:
    """A stage with everything that decides its result."""

    stage: Stage
    options: Options
    inputs: Mapping[str, Artifact | External]

    @property
    def recipe(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "stage": self.stage.name,
            "version": self.options.version,
            "config": dict(self.options.values),
            "inputs": {
                name: source.digest_without(self.stage.unread.get(name, ()))
                for name, source in sorted(self.inputs.items())
            },
            "tools": {tool: tool_version(tool) for tool in self.stage.tools},
            "sources": source_digests(self.stage.module),
        }


@dataclass(frozen=True)
class Produced:
    """A stage's artifact, and whether it was in the store already."""

    artifact: Artifact
    cached: bool


@cache
def tool_version(distribution: str) -> str | None:
    """The installed version without its build label (2.13.0 of 2.13.0+cpu), or None where it is not installed."""
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def gather(stage: Stage, made: Mapping[str, Artifact | External]) -> dict[str, Artifact | External]:
    """The inputs of a stage among what is there; KeyError where one that it needs is not."""
    return {name: made[name] for name in (*stage.inputs, *stage.optional) if name in stage.inputs or name in made}


def produce(task: Task, store: Store, observer: Observer) -> Produced:
    """Find a stage's artifact or make it: look up, lock, look up again, build, publish.

    Raises what the stage raises, with "out of memory" and "disk full" as TransientError.
    """
    recipe = task.recipe
    name, key = task.stage.name, sha256_json(recipe)
    found = store.find(name, key, damaged=_ignore)
    if found is not None:
        return Produced(found, cached=True)
    with (
        named_shortages(store.root, f"stage {name} ran"),
        store.lock(name, key, waiting=lambda owner: observer.waiting(name, owner)) as lock,
    ):
        found = store.find(name, key, lambda why: observer.log(f"a stored artifact is damaged, built again: {why}"))
        if found is not None:
            return Produced(found, cached=True)
        recorder = Recorder(observer, functools.partial(locks.tell, lock))
        return Produced(_build(task, recipe, key, store, recorder), cached=False)


def _ignore(why: str) -> None:
    """Whoever is about to build it again says so, once, under the lock."""


def _build(task: Task, recipe: dict[str, Any], key: str, store: Store, recorder: Recorder) -> Artifact:
    start = time.perf_counter()
    scratch = store.scratch(task.stage.name, key)
    with store.draft() as draft:
        paths = {name: source.path for name, source in task.inputs.items()}
        with PeakMemory() as memory:
            result: Result = task.stage.load().run(paths, task.options.config(), draft, scratch, recorder)
        _check_unchanged(task, store)
        report = {
            "backend": result.backend,
            "seconds": round(time.perf_counter() - start, 3),
            "peak_memory_gb": round(memory.gb, 3),
            "metrics": plain(result.metrics),
            "gates": plain([gate.to_json() for gate in result.gates]),
            "notes": list(result.notes),
            "log": recorder.lines,
        }
        return store.publish(draft, recipe, report)


def _check_unchanged(task: Task, store: Store) -> None:
    for name, source in task.inputs.items():
        if isinstance(source, External):
            now = External.take(source.path, store, source.leave_out)
            if now.digest != source.digest:
                raise TransientError(
                    f"{source.path}: the {name} changed while stage {task.stage.name} read it, so its result would be"
                    " of neither state. Run the same command again when nothing writes there."
                )


@contextmanager
def named_shortages(place: Path, doing: str) -> Iterator[None]:
    """Turn "out of memory" and "no space" into errors that say so; the same inputs may succeed later."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or _TORCH_CPU in text:
            raise TransientError(
                f"Out of memory while {doing} ({text}). Finished stages are kept: close other programs or use a smaller"
                " setting, then run the same command again."
            ) from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TransientError(
                f"{place}: no space left on the disk while {doing} ({text}). Finished stages are kept: free some space,"
                " then run the same command again."
            ) from error
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and _below(error.filename, place):
            raise UsageError(
                f"{place}: this folder cannot be written ({text}). Give another by --out or --store, or change its"
                " rights."
            ) from error
        raise


def _below(path: Any, folder: Path) -> bool:
    return isinstance(path, str | Path) and Path(path).is_relative_to(folder)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: arrays as lists, numpy's scalars as Python's, NaN and infinity as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, str | int) else str(value)
