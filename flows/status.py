# SPDX-License-Identifier: Apache-2.0
"""What of a run is up to date, and why not: this file, this option, this version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from real2sim.errors import UsageError
from real2sim.flows.config import resolve
from real2sim.flows.digest import FileDigest, canonical_json, sha256_json
from real2sim.flows.graph import External, Graph, Stage, Task, gather
from real2sim.flows.reconstruct import externals, provenance
from real2sim.flows.rundir import Request
from real2sim.flows.store import Artifact, Store

State = Literal["fresh", "running", "stale", "failed", "missing"]
NAMED_FILES = 5  # changed files that are named one by one


@dataclass(frozen=True)
class Row:
    """One stage of a run: its state, and every reason for it."""

    stage: str
    state: State
    why: tuple[str, ...] = ()


def status(request: Request, graph: Graph) -> list[Row]:
    """The state of each stage as the same request would find it now. Nothing is computed or written.

    A stage behind one that is not fresh cannot know its inputs yet: it is stale (it had a result) or missing.
    """
    store = Store(request.store)
    options = resolve(graph, request.config, request.settings, store.options)
    try:
        made: dict[str, Artifact | External] = dict(externals(request, store))
    except UsageError as error:
        return [Row(stage.name, "missing", (str(error),)) for stage in graph.stages]
    rows: list[Row] = []
    for stage in graph.stages:
        behind = [row.stage for row in rows if row.state != "fresh" and row.stage in stage.inputs]
        if behind:
            rows.append(_row_behind(stage, behind, store.read_ref(request.name, stage.name)))
            continue
        if "provenance" in stage.inputs:
            made["provenance"] = _provenance(request, graph, made)
        rows.append(_row(Task(stage, options[stage.name], gather(stage, made)), made, request, store))
    store.hashes.save()
    store.options.save()
    return rows


def _row_behind(stage: Stage, behind: list[str], ref: Mapping[str, Any]) -> Row:
    why = f"reads {', '.join(behind)}, which is not fresh; if that comes out the same, this stage stays"
    return Row(stage.name, "stale", (why,)) if ref.get("done") else Row(stage.name, "missing", (why,))


def _row(task: Task, made: dict[str, Artifact | External], request: Request, store: Store) -> Row:
    """The state of a stage whose inputs are all there; a fresh one joins `made`."""
    name, recipe, damage = task.stage.name, task.recipe, list[str]()
    key = sha256_json(recipe)
    artifact = store.find(name, key, damage.append)
    if artifact is not None:
        made[name] = artifact
        failed = [g["name"] for g in artifact.manifest["gates"] if not g["passed"]]
        return Row(name, "fresh", tuple(f"gate {gate} failed" for gate in failed))
    if owner := store.holder(name, key):
        return Row(name, "running", (f"{owner} computes it",))
    ref = store.read_ref(request.name, name)
    failure, done = ref.get("failed"), ref.get("done")
    if failure and failure["key"] == key:
        return Row(name, "failed", (failure["error"],))
    begun = ("it was begun and goes on from its checkpoint",) if store.begun(name, key) else ()
    if done:
        return Row(name, "stale", (*(damage or _changes(done, task, recipe)), *begun))
    return Row(name, "missing", begun or ("it has not run yet",))


def _provenance(request: Request, graph: Graph, made: Mapping[str, Artifact | External]) -> External:
    manifests = [source.manifest for s in graph.stages if isinstance(source := made.get(s.name), Artifact)]
    capture = made["capture"].digest
    text = provenance(request.run.name, capture, request.allow, manifests)
    path = request.run / "provenance.json"
    return External(path, (FileDigest.of_text(path.name, text),))


def _changes(done: Mapping[str, Any], task: Task, recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs between the recipe of a run's last result and the recipe now, in words."""
    name, old = task.stage.name, done["recipe"]
    why = [f"version of {name}: {old['version']} → {recipe['version']}"] if old["version"] != recipe["version"] else []
    why += [f"option {name}.{k}: {a} → {b}" for k, a, b in _differences(old["config"], recipe["config"])]
    for source, _, _ in _differences(old["inputs"], recipe["inputs"]):
        given = task.inputs.get(source)
        if source == "provenance":
            why.append("keys, options or gates of earlier stages, or the allowed gates, are others now")
        elif isinstance(given, External) or source in done["files"]:
            now = {f.path: f.sha256 for f in given.files} if isinstance(given, External) else {}
            why += _file_changes(source, {f["path"]: f["sha256"] for f in done["files"].get(source, ())}, now)
        else:
            why.append(f"the output of {source} is another now")
    why += [f"version of {tool}: {a} → {b}" for tool, a, b in _differences(old["tools"], recipe["tools"])]
    why += [f"source of {module} changed" for module, _, _ in _differences(old["sources"], recipe["sources"])]
    if old["schema"] != recipe["schema"]:
        why.append(f"store schema: {old['schema']} → {recipe['schema']}")
    return tuple(why) or ("its artifact is no longer in the store",)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    names = sorted(old.keys() | new.keys())
    pairs = [(name, old.get(name), new.get(name)) for name in names]
    return [(name, a, b) for name, a, b in pairs if canonical_json(a) != canonical_json(b)]


def _file_changes(source: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    changed = _differences(old, new)
    lines = [f"{source} file {name} {_how(a, b)}" for name, a, b in changed[:NAMED_FILES]]
    more = len(changed) - NAMED_FILES
    return [*lines, f"and {more} more {source} files"] if more > 0 else lines


def _how(old: str | None, new: str | None) -> str:
    if old is None:
        return "was added"
    return "was removed" if new is None else "changed"
