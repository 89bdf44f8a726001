# SPDX-License-Identifier: Apache-2.0
"""capture.yaml: what a person can state about a capture. An unknown key is an error that names the nearest one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from real2sim.errors import CaptureError

T = TypeVar("T")

FILE = "capture.yaml"
DEPTH_UNITS = {"mm": 0.001, "m": 1.0}
CAMERA_MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
Point = dict[str, tuple[float, float]]  # image -> pixel (x, y) of the upright image


@dataclass(frozen=True)
class SourceNotes:
    """One source (a sub-folder, a video; "." is the capture's own folder). focal_px [px] of its images as they are."""

    camera_model: str | None = None
    focal_px: float | None = None
    ordered: bool | None = None


@dataclass(frozen=True)
class DepthNotes:
    """unit_m: metres per stored step; registered to colour or not; K [3][3] of a depth camera of its own."""

    unit_m: float = 0.001
    registered: Literal["auto"] | bool = "auto"
    K: list[list[float]] | None = None


@dataclass(frozen=True)
class Marker:
    """A printed ArUco marker; size_m: length of the black square's side [m]."""

    dictionary: str
    size_m: float


@dataclass(frozen=True)
class KnownLength:
    """Two points of the scene, length_m [m] apart, each seen at pixels of some images."""

    length_m: float
    points: tuple[Point, Point]


@dataclass(frozen=True)
class CaptureNotes:
    """gravity: direction of down, [x, y, z] in the frame of the given poses."""

    sources: dict[str, SourceNotes] = field(default_factory=dict)
    depth: DepthNotes = DepthNotes()
    marker: Marker | None = None
    known_lengths: list[KnownLength] = field(default_factory=list)
    gravity: tuple[float, float, float] | None = None
    licence: str | None = None
    notes: str | None = None


def read_capture_yaml(folder: Path) -> CaptureNotes:
    """The notes of a capture; empty where it has no capture.yaml. Raises CaptureError naming the file and the field."""
    path = folder / FILE
    if not path.is_file():
        return CaptureNotes()
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise CaptureError(f"{path}: not a readable YAML file ({error}). Correct it or remove it.") from error
    return _Reader(path).notes(data or {})


def parse_known_length(text: str) -> KnownLength:
    """ "METRES IMAGE x,y x,y [IMAGE x,y x,y …]": both ends of one length in each image; two images at least fix it."""
    words = text.split()
    form = f"known length {text!r}: expected METRES IMAGE x,y x,y [IMAGE x,y x,y …], such as 0.12 a.jpg 10,20 90,22"
    if len(words) < 4 or len(words) % 3 != 1:
        raise CaptureError(f"{form}; received {len(words)} words.")
    ends: tuple[Point, Point] = ({}, {})
    try:
        for at in range(1, len(words), 3):
            for end, pixel in zip(ends, words[at + 1 : at + 3]):
                x, y = (float(v) for v in pixel.split(","))
                end[words[at]] = (x, y)
        length = float(words[0])
    except ValueError as error:
        raise CaptureError(f"{form} ({error}).") from error
    if not (math.isfinite(length) and length > 0):
        raise CaptureError(f"{form}; the length must be positive, received {words[0]}.")
    return KnownLength(length, ends)


@dataclass(frozen=True)
class _Reader:
    path: Path

    def notes(self, data: Any) -> CaptureNotes:
        rows = self.mapping(data, "", CaptureNotes.__dataclass_fields__)
        lengths = rows.get("known_lengths") or []
        if not isinstance(lengths, list):
            raise self.error("known_lengths", "a list", lengths)
        return CaptureNotes(
            sources={str(name): self.source(name, value) for name, value in self.sources(rows.get("sources")).items()},
            depth=self.depth(rows.get("depth") or {}),
            marker=self.marker(rows["marker"]) if rows.get("marker") is not None else None,
            known_lengths=[self.known_length(i, value) for i, value in enumerate(lengths)],
            gravity=self.optional(rows, "gravity", "gravity", self.vector),
            licence=self.optional(rows, "licence", "licence", self.text),
            notes=self.optional(rows, "notes", "notes", self.text),
        )

    def sources(self, data: Any) -> Mapping[Any, Any]:
        if data is not None and not isinstance(data, Mapping):
            raise self.error("sources", "source: {option: value}", data)
        return data or {}

    def source(self, name: Any, data: Any) -> SourceNotes:
        where = f"sources.{name}"
        rows = self.mapping(data or {}, where, SourceNotes.__dataclass_fields__)
        return SourceNotes(
            self.optional(rows, "camera_model", f"{where}.camera_model", self.camera_model),
            self.optional(rows, "focal_px", f"{where}.focal_px", self.positive),
            self.optional(rows, "ordered", f"{where}.ordered", self.boolean),
        )

    def depth(self, data: Any) -> DepthNotes:
        rows = self.mapping(data, "depth", ("unit", "registered", "K"))
        unit = rows.get("unit", "mm")
        known = isinstance(unit, str) and unit in DEPTH_UNITS
        unit_m = DEPTH_UNITS[unit] if known else self.positive(unit, "depth.unit", "mm, m, or metres per step")
        registered = rows.get("registered", "auto")
        if registered != "auto":
            registered = self.boolean(registered, "depth.registered")
        K = self.optional(rows, "K", "depth.K", self.matrix)
        if registered == "auto" and K is not None:
            registered = False  # intrinsics of its own are those of another camera
        return DepthNotes(unit_m, registered, K)

    def marker(self, data: Any) -> Marker:
        rows = self.mapping(data, "marker", ("dictionary", "size_m"))
        if "size_m" not in rows:
            raise self.error("marker.size_m", "the side of the black square in metres", None)
        return Marker(
            self.text(rows.get("dictionary", "DICT_4X4_50"), "marker.dictionary"),
            self.positive(rows["size_m"], "marker.size_m"),
        )

    def known_length(self, index: int, data: Any) -> KnownLength:
        where = f"known_lengths[{index}]"
        if isinstance(data, str):
            return parse_known_length(data)
        rows = self.mapping(data, where, ("length_m", "points"))
        points = rows.get("points")
        if not isinstance(points, list) or len(points) != 2:
            raise self.error(f"{where}.points", "two mappings of image: [x, y]", points)
        first, second = (self.point(p, f"{where}.points[{i}]") for i, p in enumerate(points))
        return KnownLength(self.positive(rows.get("length_m"), f"{where}.length_m"), (first, second))

    def point(self, data: Any, where: str) -> Point:
        if not isinstance(data, Mapping) or not data:
            raise self.error(where, "image: [x, y]", data)
        pixels = {str(image): self.numbers(pixel, f"{where}.{image}", 2) for image, pixel in data.items()}
        return {image: (pixel[0], pixel[1]) for image, pixel in pixels.items()}

    def mapping(self, data: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise self.error(where or "the file", "key: value", data)
        for key in data:
            if key not in known:
                meant = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.0)[0]
                at = f"{where}.{key}" if where else str(key)
                raise CaptureError(
                    f"{self.path}: unknown key {at!r}. Did you mean {meant!r}? Keys here: {', '.join(known)}."
                )
        return dict(data)

    def error(self, where: str, expected: str, received: Any) -> CaptureError:
        return CaptureError(f"{self.path}: {where}: expected {expected}, received {received!r}.")

    def optional(self, rows: Mapping[str, Any], key: str, where: str, read: Callable[[Any, str], T]) -> T | None:
        return read(rows[key], where) if rows.get(key) is not None else None

    def camera_model(self, value: Any, where: str) -> str:
        if value not in CAMERA_MODELS:
            raise self.error(where, "one of " + ", ".join(CAMERA_MODELS), value)
        return value

    def text(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise self.error(where, "a text", value)
        return value

    def boolean(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise self.error(where, "true or false", value)
        return value

    def positive(self, value: Any, where: str, expected: str = "a positive number") -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise self.error(where, expected, value)
        return float(value)

    def numbers(self, value: Any, where: str, count: int) -> list[float]:
        if not isinstance(value, list) or len(value) != count or not all(_is_number(v) for v in value):
            raise self.error(where, f"a list of {count} numbers", value)
        return [float(v) for v in value]

    def vector(self, value: Any, where: str) -> tuple[float, float, float]:
        x, y, z = self.numbers(value, where, 3)
        length = math.sqrt(x * x + y * y + z * z)
        if length == 0:
            raise self.error(where, "a direction", value)
        return x / length, y / length, z / length

    def matrix(self, value: Any, where: str) -> list[list[float]]:
        if not isinstance(value, list) or len(value) != 3:
            raise self.error(where, "a 3x3 matrix [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]", value)
        return [self.numbers(row, where, 3) for row in value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
