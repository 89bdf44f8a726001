# SPDX-License-Identifier: Apache-2.0
"""The bundle on disk, schema version 1: what is written, what is read, and what is refused.

A bundle is complete when its `bundle.json` exists: that file is written last and holds the SHA-256 and the size of
every other file. Fields that are not known here are kept; a schema version that is not known is refused. Nothing
outside the folder is ever opened: paths are relative, stay inside, and neither they nor the scene's XML may point
elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from real2sim.errors import BundleError, Real2SimError
from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.gates import Gate
from real2sim.sim.transforms import Similarity, quat_to_matrix

if TYPE_CHECKING:
    from real2sim.sim.render.splat import Splat

SCHEMA = 1
INDEX = "bundle.json"
REPORT = "report.html"
# A bundle of 5,000 cameras and a million parts has an index of a few megabytes; more is not a bundle.
MAX_INDEX_BYTES = 64 * 2**20
MAX_SIDE_PX = 32_768  # of a camera's picture: more would not fit in memory
# Left out of the digest: what differs between two runs of the same inputs.
VARYING_KEYS = frozenset({"seconds", "peak_memory_gb", "host", "date", "cached"})


@dataclass(frozen=True)
class Bundle:
    """A bundle's folder and its index. `data` is bundle.json as it was read, unknown fields included."""

    root: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def scene(self) -> Path:
        """The MJCF file."""
        return self.path(self.data["scene"])

    @property
    def gates(self) -> list[Gate]:
        return [Gate.from_json(gate) for gate in self.data["gates"]]

    @property
    def support(self) -> dict[str, Any] | None:
        """{"polygon": [[x, y], ...] world frame [m], counter-clockwise, "height": z [m]}, or None without a support."""
        return self.data["alignment"].get("support")

    @property
    def background(self) -> dict[str, Any]:
        """The static asset named "background"."""
        for asset in self.data["assets"]:
            if asset["name"] == "background":
                return asset
        raise BundleError(f"{self.root / INDEX}: a bundle has an asset named 'background'; this one has none.")

    def path(self, relative: str) -> Path:
        """A file of the bundle; raises BundleError for a path that leads out of it."""
        return safe_path(self.root, relative)

    def cameras(self) -> list[Camera]:
        """The capture's cameras, world frame; their image paths are relative to the bundle."""
        try:
            cameras = read_cameras(self.path(self.data["cameras"]))
        except Real2SimError as error:
            raise BundleError(str(error)) from error
        if not cameras:
            raise BundleError(f"{self.path(self.data['cameras'])}: a bundle has cameras; this one has none.")
        for camera in cameras:
            if not (0 < camera.width <= MAX_SIDE_PX and 0 < camera.height <= MAX_SIDE_PX):
                raise BundleError(
                    f"{self.path(self.data['cameras'])}: camera {camera.name!r} is {camera.width}x{camera.height} px; "
                    f"a side is 1 to {MAX_SIDE_PX} px."
                )
            for file in (camera.image, camera.mask, camera.depth):
                if file is not None:
                    self.path(file)
        return cameras

    @property
    def movable(self) -> list[dict[str, Any]]:
        """The assets that are bodies of their own, each with "position" [m] and "quat" wxyz of its body in the world."""
        return [asset for asset in self.data["assets"] if not asset["static"]]

    def background_splat(self) -> Splat:
        """Gaussians of the background, world frame."""
        if self.background["splat"] is None:
            raise BundleError(f"{self.root / INDEX}: the background has no splat, so there is nothing to render.")
        return self._load_splat(self.background["splat"])

    def splat(self) -> Splat:
        """All Gaussians, world frame: the background's, then those of each movable asset in order, where it starts."""
        from real2sim.sim.render.splat import concatenate

        parts = self.object_splats()
        moved = [parts[a["name"]].transformed(body_pose(a)) for a in self.movable if a["name"] in parts]
        return concatenate([self.background_splat(), *moved])

    def object_splats(self) -> dict[str, Splat]:
        """Gaussians of each movable asset that has some, body frame, by name."""
        return {asset["name"]: self._load_splat(asset["splat"]) for asset in self.movable if asset["splat"]}

    def _load_splat(self, file: str) -> Splat:
        from real2sim.sim.render.splat import Splat

        try:
            return Splat.load(self.path(file))
        except Real2SimError as error:
            raise BundleError(str(error)) from error


def body_pose(asset: dict[str, Any]) -> Similarity:
    """T_world_body of a movable asset, where it starts."""
    return Similarity(1.0, quat_to_matrix(asset["quat"]), np.asarray(asset["position"], np.float64))


def safe_path(root: Path, relative: str) -> Path:
    """`root / relative`, after checking that it stays inside root; raises BundleError naming the path and the rule."""
    pure = PurePosixPath(relative)
    rule = None
    if not relative or any(ord(c) < 32 for c in relative):
        rule = "is empty or holds control characters"
    elif pure.is_absolute() or "\\" in relative or ":" in relative:
        rule = "is not a relative path with forward slashes"
    elif ".." in pure.parts:
        rule = "climbs out with '..'"
    else:
        path = root / pure
        if path.resolve().is_relative_to(root.resolve()):
            return path
        rule = "leads out of the bundle through a symbolic link"
    raise BundleError(
        f"{root}: the path {relative!r} {rule}. Files of a bundle lie inside its folder; do not trust it."
    )


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bundle_digest(data: dict[str, Any]) -> str:
    """SHA-256 over what the bundle is, leaving out what varies from run to run of the same inputs.

    Left out: the digest itself, the report, and the fields in VARYING_KEYS of the provenance.
    """
    kept = {k: v for k, v in data.items() if k not in ("digest", "files", "provenance")}
    kept["files"] = {name: entry for name, entry in data["files"].items() if name != REPORT}
    kept["provenance"] = _without_varying(data["provenance"])
    return hashlib.sha256(_canonical(kept)).hexdigest()


def _without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_varying(v) for k, v in value.items() if k not in VARYING_KEYS}
    return [_without_varying(v) for v in value] if isinstance(value, list) else value


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def write_index(root: Path, data: dict[str, Any]) -> Bundle:
    """Hash every file under root into `data["files"]`, set the digest, check the result, and write bundle.json last.

    The index appears by one rename, so a folder with an index is complete. Raises BundleError when the result would not
    be read back.
    """
    files = {
        path.relative_to(root).as_posix(): {"sha256": sha256_file(path), "size": path.stat().st_size}
        for path in _files_below(root)
    }
    data = {**data, "schema": SCHEMA, "files": files}
    data["digest"] = bundle_digest(data)
    bundle = Bundle(root, data)
    validate(bundle)
    partial = root / (INDEX + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(root / INDEX)
    return bundle


def _files_below(root: Path) -> list[Path]:
    found = sorted(path for path in root.rglob("*") if not path.is_dir())
    for path in found:
        if path.is_symlink():
            raise BundleError(f"{path}: a bundle holds plain files; this is a symbolic link. Replace it by its target.")
    return [path for path in found if path.name not in (INDEX, INDEX + ".partial") or path.parent != root]


def read_bundle(root: Path | str, *, progress: Callable[[float, float], None] | None = None) -> Bundle:
    """Read a bundle and verify it: schema, paths, references, and the hash of every file.

    root: the bundle's folder. progress(done, total): bytes hashed. Raises BundleError naming the file that is missing,
    changed or not allowed.
    """
    bundle = Bundle(Path(root), read_index(Path(root)))
    validate(bundle)
    _verify_files(bundle, progress)
    check_scene_xml(bundle)
    if bundle.data["digest"] != bundle_digest(bundle.data):
        raise BundleError(
            f"{bundle.root / INDEX}: the digest does not match the content: {INDEX} was edited after it was written. "
            "Reconstruct the bundle, or restore the file from a copy."
        )
    return bundle


def read_index(root: Path) -> dict[str, Any]:
    path = root / INDEX
    if not path.is_file():
        raise BundleError(
            f"{root}: not a bundle: it has no {INDEX}. Give the folder that `reconstruct` wrote as RUN/bundle."
        )
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise BundleError(f"{path}: {path.stat().st_size} bytes; an index has at most {MAX_INDEX_BYTES}. Not a bundle.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{path}: not valid JSON ({error}). The file is damaged; restore or reconstruct it."
        ) from error
    version = data.get("schema") if isinstance(data, dict) else None
    if version != SCHEMA or isinstance(version, bool):
        raise BundleError(
            f"{path}: bundle schema {version!r}; this program reads schema {SCHEMA}. "
            "Update real2sim, or reconstruct the bundle with this version."
        )
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON allows")


def validate(bundle: Bundle) -> None:
    """The JSON schema, then what a schema cannot say: safe paths, and that every file named is listed with its hash."""
    import jsonschema

    schema = json.loads(Path(__file__).with_name("bundle.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    try:
        problem = next(iter(validator.iter_errors(bundle.data)), None)
    except RecursionError as error:
        raise BundleError(f"{bundle.root / INDEX}: nested too deeply to be a bundle.") from error
    if problem is not None:
        where = "/".join(str(p) for p in problem.absolute_path) or "top level"
        message = problem.message if len(problem.message) < 300 else problem.message[:300] + " …"
        raise BundleError(
            f"{bundle.root / INDEX}: {where}: {message}. The file does not follow bundle schema {SCHEMA}."
        )
    for name in bundle.data["files"]:
        bundle.path(name)
    for name in _referenced(bundle.data):
        bundle.path(name)
        if name not in bundle.data["files"]:
            raise BundleError(f"{bundle.root / INDEX}: names {name!r}, which is not in its list of files and hashes.")


def _referenced(data: dict[str, Any]) -> Iterator[str]:
    yield from (data["scene"], data["cameras"])
    if data["semantics"] is not None:
        yield data["semantics"]
    for asset in data["assets"]:
        yield from (name for name in (asset["splat"], asset["mesh"], asset["asset"]) if name is not None)
        yield from asset["collision"]


def unlisted_files(bundle: Bundle) -> list[str]:
    """Files in the bundle's folder that are no part of it: nothing reads them, and nothing vouches for them."""
    listed = {*bundle.data["files"], INDEX}
    found = (p.relative_to(bundle.root).as_posix() for p in bundle.root.rglob("*") if not p.is_dir())
    return sorted(name for name in found if name not in listed)


def _verify_files(bundle: Bundle, progress: Callable[[float, float], None] | None) -> None:
    files = bundle.data["files"]
    total, done = sum(entry["size"] for entry in files.values()), 0
    for name, entry in files.items():
        path = bundle.path(name)
        if not path.is_file():
            raise BundleError(
                f"{path}: listed in {INDEX} but missing. The bundle was not copied as a whole; copy it again."
            )
        size = path.stat().st_size
        if size != entry["size"] or sha256_file(path) != entry["sha256"]:
            raise BundleError(
                f"{path}: changed since the bundle was written ({size} bytes, {entry['size']} expected, "
                "and the SHA-256 must match). Restore it from a copy or reconstruct the bundle."
            )
        done += size
        if progress is not None:
            progress(done, total)


# MJCF that opens files or runs code by itself; a bundle's scene needs none of it.
REFUSED_ELEMENTS = frozenset(
    {"include", "plugin", "extension", "attach", "model", "composite", "flexcomp", "replicate"}
)
FOLDER_ATTRIBUTES = frozenset({"meshdir", "texturedir", "assetdir"})


def check_scene_xml(bundle: Bundle) -> None:
    """Refuse a scene.xml that reaches outside the bundle or that declares entities; raises BundleError.

    Every `file…` attribute must be a listed file of the bundle, relative to scene.xml.
    """
    from xml.parsers import expat

    scene = bundle.scene
    parser = expat.ParserCreate()

    def refuse(what: str) -> None:
        raise BundleError(
            f"{scene}: line {parser.CurrentLineNumber}: {what}. Do not load it from a source you do not trust."
        )

    def element(tag: str, attributes: dict[str, str]) -> None:
        if tag in REFUSED_ELEMENTS:
            refuse(f"the element <{tag}> is not allowed in a bundle's scene")
        for key, value in attributes.items():
            if key in FOLDER_ATTRIBUTES:
                refuse(f"the attribute {key} is not allowed: files are named relative to scene.xml")
            if key.startswith("file"):
                listed = (PurePosixPath(bundle.data["scene"]).parent / value).as_posix()
                bundle.path(listed)
                if listed not in bundle.data["files"]:
                    refuse(f"it opens {value!r}, which is not a listed file of the bundle")

    parser.StartElementHandler = element
    parser.StartDoctypeDeclHandler = lambda *_: refuse("a document type declaration is not allowed")
    try:
        parser.Parse(scene.read_bytes(), True)
    except expat.ExpatError as error:
        raise BundleError(f"{scene}: not well-formed XML ({error}). Reconstruct the bundle.") from error
