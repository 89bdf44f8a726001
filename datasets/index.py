# SPDX-License-Identifier: Apache-2.0
"""The index of a dataset: one row a scene in SQLite, with outcome, gates, metrics, licences, thumbnail; and filters."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from real2sim.errors import Real2SimError, UsageError

FILE = "index.sqlite"
THUMBNAIL = (192, 144)  # px, at most
SCHEMA = """
CREATE TABLE IF NOT EXISTS scenes (
  name TEXT PRIMARY KEY, path TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
  digest TEXT, frames INTEGER, registered INTEGER, psnr_heldout REAL, ssim_heldout REAL, gaussians INTEGER,
  seconds REAL, peak_memory_gb REAL, scale_from TEXT, support INTEGER, assets INTEGER, megabytes REAL,
  failed_gates TEXT NOT NULL, allowed TEXT NOT NULL, commercial INTEGER, licences TEXT NOT NULL, gates TEXT NOT NULL,
  thumbnail BLOB
)"""
MEASURED = ("frames", "registered", "psnr_heldout", "ssim_heldout", "gaussians", "peak_memory_gb")


class EndedScene(Protocol):
    """What the index reads of how a scene ended."""

    @property
    def name(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def reason(self) -> str: ...


def update_index(out: Path, ended: Iterable[EndedScene]) -> Path:
    """Make OUT/index.sqlite tell of these scenes and no others, in one transaction."""
    path = out / FILE
    with closing(sqlite3.connect(path)) as index, index:
        index.execute("DROP TABLE IF EXISTS scenes")
        index.execute(SCHEMA)
        for scene in ended:
            row = _row(out, scene)
            places = ", ".join(f":{column}" for column in row)
            index.execute(f"INSERT INTO scenes ({', '.join(row)}) VALUES ({places})", row)
    return path


def read_index(out: Path, where: str = "", *, pictures: bool = False) -> list[dict[str, Any]]:
    """Rows of an index, by name. where: an SQL condition such as "psnr_heldout > 25 AND commercial".

    Raises UsageError where there is no index, or the condition is none.
    """
    path = out / FILE
    if not path.is_file():
        raise UsageError(
            f"{out}: holds no {FILE}. `real2sim dataset build` writes one into the folder `out` of its YAML."
        )
    query = "SELECT * FROM scenes" + (f" WHERE {where}" if where else "") + " ORDER BY name"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as index:
        index.row_factory = sqlite3.Row
        try:
            rows = [dict(row) for row in index.execute(query)]
        except sqlite3.Error as error:
            raise UsageError(f"--where {where!r}: {error}. Columns: {', '.join(_columns(index))}.") from error
    return [_decoded(row, pictures) for row in rows]


def manifest(out: Path, where: str = "") -> Iterator[str]:
    """Good scenes as JSON lines: name, bundle relative to OUT, digest, measures, licences."""
    for row in read_index(out, where):
        if row["outcome"] == "good":
            kept = ("name", "path", "digest", "scale_from", "support", "commercial", "licences", *MEASURED)
            yield json.dumps({key: row[key] for key in kept}, ensure_ascii=False)


def _columns(index: sqlite3.Connection) -> list[str]:
    return [row[1] for row in index.execute("PRAGMA table_info(scenes)")]


def _decoded(row: dict[str, Any], pictures: bool) -> dict[str, Any]:
    for column in ("failed_gates", "allowed", "licences", "gates"):
        row[column] = json.loads(row[column])
    if not pictures:
        row.pop("thumbnail")
    return row


def _row(out: Path, scene: EndedScene) -> dict[str, Any]:
    run = out / "scenes" / scene.name
    summary = _json(run / "summary.json") if scene.reason == "" or scene.outcome == "refused" else {}
    bundle = _json(run / "bundle" / "bundle.json") if scene.outcome == "good" else {}
    licences = bundle.get("licences", [])
    files = bundle.get("files", {})
    alignment = bundle.get("alignment", {})
    return {
        "name": scene.name,
        "path": f"scenes/{scene.name}/bundle" if bundle else f"scenes/{scene.name}",
        "outcome": scene.outcome,
        "reason": scene.reason,
        "digest": bundle.get("digest"),
        **{column: summary.get(column) for column in MEASURED},
        "seconds": summary.get("seconds_computed"),
        "scale_from": alignment.get("sources", {}).get("scale", {}).get("from"),
        "support": None if not bundle else int(alignment.get("support") is not None),
        "assets": len(bundle["assets"]) if bundle else None,
        "megabytes": sum(f["size"] for f in files.values()) / 1e6 if files else None,
        "failed_gates": json.dumps(summary.get("failed_gates", [])),
        "allowed": json.dumps(bundle.get("allowed", summary.get("allowed", []))),
        "commercial": None if not bundle else int(all(row.get("commercial") for row in licences)),
        "licences": json.dumps(licences),
        "gates": json.dumps([_gate(gate) for gate in summary.get("gates", [])]),
        "thumbnail": _thumbnail(run / "bundle", files),
    }


def _gate(gate: Mapping[str, Any]) -> dict[str, Any]:
    return {key: gate.get(key) for key in ("name", "value", "threshold", "passed")}


def _thumbnail(bundle: Path, files: Mapping[str, Any]) -> bytes | None:
    """A held-out frame of a bundle, small, as JPEG."""
    pictures = sorted(name for name in files if name.startswith("frames/"))
    if not pictures:
        return None
    import io

    from PIL import Image

    from real2sim.sim.bundle import safe_path

    try:
        with Image.open(safe_path(bundle, pictures[0])) as image:
            image.thumbnail(THUMBNAIL)
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, "JPEG", quality=85)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Real2SimError):
        return None
    return buffer.getvalue()


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
