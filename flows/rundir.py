# SPDX-License-Identifier: Apache-2.0
"""RUN, the folder that a person looks into: what was asked, what came out, and the bundle.

run.json         what was asked (capture, options, store): all that `status` and a repetition need
summary.json     what came out, in numbers          report.html   the same for a reader
provenance.json  keys, configs and gates of the stages before the bundle: an input of the stage that writes it
bundle/          there only when every gate passed or is allowed; appears by one rename
bundle.previous/ the bundle of an earlier run, set aside when a later run was refused or failed
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real2sim.errors import UsageError
from real2sim.flows import locks
from real2sim.flows.config import Setting
from real2sim.flows.digest import digest_folder, sync, write_atomic
from real2sim.flows.graph import Graph
from real2sim.flows.store import Artifact, Store

_FICLONE = 0x40049409  # ioctl_ficlone(2): share the source's blocks, copied only when one side is written


@dataclass(frozen=True)
class Request:
    """What a run was asked for. Paths are absolute.

    settings: over the config file; allow: gates that may fail; poses: file of camera poses that is an input.
    """

    capture: Path
    run: Path
    store: Path
    config: Path | None = None
    settings: tuple[Setting, ...] = ()
    allow: tuple[str, ...] = ()
    poses: Path | None = None

    @property
    def name(self) -> str:
        """The run's name in the store: readable, and apart from another folder of the same name."""
        return f"{self.run.name}-{hashlib.sha256(str(self.run).encode()).hexdigest()[:8]}"

    def write(self) -> None:
        data = {
            "capture": str(self.capture),
            "store": os.path.relpath(self.store, self.run),
            "config": str(self.config) if self.config else None,
            "settings": [list(s) for s in self.settings],
            "allow": sorted(self.allow),
            "poses": str(self.poses) if self.poses else None,
        }
        write_atomic(self.run / "run.json", json.dumps(data, indent=1, ensure_ascii=False))

    @staticmethod
    def read(run: Path) -> Request:
        """What RUN was last asked for; UsageError where the folder is no run."""
        run = run.absolute()
        try:
            data = json.loads((run / "run.json").read_text())
            return Request(
                capture=Path(data["capture"]),
                run=run,
                store=Path(os.path.normpath(run / data["store"])),
                config=Path(data["config"]) if data["config"] else None,
                settings=tuple(Setting(*row) for row in data["settings"]),
                allow=tuple(data["allow"]),
                poses=Path(data["poses"]) if data["poses"] else None,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{run}: not a run folder ({error}). Give the folder that was passed to"
                " `real2sim reconstruct CAPTURE --out RUN`."
            ) from error


REPLACED = ("bundle", "bundle.previous", "summary.json", "report.html", "provenance.json", "traceback.txt")


def open_run(request: Request) -> None:
    """Make the run's folder and write run.json; UsageError where a run would replace what no run has made."""
    run = request.run
    run.mkdir(parents=True, exist_ok=True)
    if not (run / "run.json").is_file():
        for name in REPLACED:
            if (run / name).exists():
                raise UsageError(
                    f"--out {run}: holds {name}, which no run has made, and a run would replace it. Give another folder."
                )
    request.write()


@contextmanager
def finishing(run: Path) -> Iterator[None]:
    """Hold the right to write a run's results; what a dead process left half-copied is removed first."""
    with locks.exclusive(run / ".lock", remove=True):
        for left in run.glob(".bundle-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def place_bundle(artifact: Artifact, graph: Graph, request: Request, store: Store, report_of: str) -> None:
    """Make RUN/bundle a self-contained copy of the result's folder, with the report in it.

    Nothing is done where it is that already, byte for byte. Otherwise the new one is complete, on the disk, before the
    old one goes; between the two renames there is none, which the same command makes good.
    """
    run, target = request.run, request.run / "bundle"
    source = {"key": artifact.key, "report_of": report_of}
    placed = store.read_ref(request.name, "bundle")
    if placed.get("source") == source and placed.get("files") == _listing(target, store):
        return
    draft, old = (run / f".bundle-{uuid.uuid4().hex}" for _ in range(2))
    _copy_folder(artifact, graph.result, draft)
    _copy(run / "report.html", draft / "report.html")
    graph.seal(draft)
    for folder, _, _ in os.walk(draft, topdown=False):
        sync(Path(folder))
    if target.exists():
        target.rename(old)
    draft.rename(target)
    sync(run)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(run / "bundle.previous", ignore_errors=True)
    store.write_ref(request.name, "bundle", {"source": source, "files": _listing(target, store)})


def _copy_folder(artifact: Artifact, folder: str, draft: Path) -> None:
    names = [row[0] for row in artifact.manifest["files"] if row[0].startswith(f"{folder}/")]
    if not names:
        raise ValueError(f"{artifact.path}: stage {artifact.stage} wrote no folder {folder!r}.")
    for name in names:
        copy = draft / name.removeprefix(f"{folder}/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        _copy(artifact.path / name, copy)


def _listing(folder: Path, store: Store) -> list[list[Any]] | None:
    """The files of a folder as JSON holds them; None where it is not there or holds links."""
    try:
        return [[f.path, f.size, f.sha256] for f in digest_folder(folder, store.hashes)] if folder.is_dir() else None
    except ValueError:
        return None


def set_bundle_aside(run: Path) -> None:
    """Take an earlier run's bundle out of the way, so that it never looks like the result of this run."""
    if (run / "bundle").exists():
        shutil.rmtree(run / "bundle.previous", ignore_errors=True)
        (run / "bundle").rename(run / "bundle.previous")
        sync(run)


def _copy(source: Path, target: Path) -> None:
    """Copy a file's bytes to the disk, sharing blocks where the file system can."""
    with source.open("rb") as reader, target.open("wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
        os.fsync(writer.fileno())
