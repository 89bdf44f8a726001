# SPDX-License-Identifier: Apache-2.0
"""A dataset as one page: how many scenes are good, why the others are not, and each scene's figures and picture."""

from __future__ import annotations

import base64
import json
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from real2sim.datasets.index import read_index
from real2sim.flows.digest import write_atomic

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; width: 100% } td, th { padding: .4rem .6rem; text-align: left; vertical-align: top;
border-bottom: 1px solid #ddd } img { border-radius: 4px; max-width: 160px }
.good { color: #127a2c } .refused { color: #b3261e }
.other { color: #8a5a00 } .reason { max-width: 30rem } small { color: #666 } .sum { font-size: 1.2rem }
"""


def write_dataset_report(out: Path, where: str = "") -> Path:
    """Write OUT/report.html from OUT/index.sqlite; where: an SQL condition on its columns."""
    rows = read_index(out, where, pictures=True)
    page = out / "report.html"
    write_atomic(page, _page(_name(out), rows, where))
    return page


def _name(out: Path) -> str:
    """The dataset's name, as its last build wrote it."""
    try:
        return str(json.loads((out / "summary.json").read_text())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return out.name


def _page(name: str, rows: list[dict[str, Any]], where: str) -> str:
    counts = Counter(row["outcome"] for row in rows)
    total = ", ".join(f"{n} {escape(outcome)}" for outcome, n in sorted(counts.items()))
    refused = [row for row in rows if row["outcome"] != "good"]
    gates = Counter(gate for row in refused for gate in row["failed_gates"] if gate not in row["allowed"])
    failed = "; ".join(f"{escape(gate)} ({n})" for gate, n in gates.most_common())
    head = "<tr><th></th><th>scene</th><th>frames</th><th>held-out</th><th>metres from</th><th>size, time</th><th></th></tr>"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(name)}</title><style>{STYLE}</style>"
        f"<h1>{escape(name)}</h1><p class=sum>{len(rows)} scenes: {total or 'none'}</p>"
        + (f"<p>Where {escape(where)}</p>" if where else "")
        + (f"<p>Gates that refused: {failed}</p>" if failed else "")
        + f"<table>{head}{''.join(_scene(row) for row in rows)}</table></html>\n"
    )


def _scene(row: dict[str, Any]) -> str:
    colour = row["outcome"] if row["outcome"] in ("good", "refused") else "other"
    picture = ""
    if row["thumbnail"]:
        picture = f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(row["thumbnail"]).decode()}">'
    run = f"scenes/{row['name']}"
    psnr = "" if row["psnr_heldout"] is None else f"{row['psnr_heldout']:.1f} dB"
    frames = "" if row["frames"] is None else f"{row['registered'] or 0} of {row['frames']}"
    size = "" if row["megabytes"] is None else f"{row['megabytes']:.0f} MB<br>"
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f} s"
    waived = [gate for gate in row["failed_gates"] if gate in row["allowed"]]
    allowed = f"<br><small>failed, but allowed: {escape(', '.join(waived))}</small>" if waived else ""
    end = f"<b class={colour}>{escape(row['outcome'])}</b>{allowed}<br>{escape(row['reason'])}"
    cells = (
        picture,
        f'<a href="{escape(run, quote=True)}/report.html">{escape(row["name"])}</a>',
        frames,
        psnr,
        escape(row["scale_from"] or ""),
        size + seconds,
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}<td class=reason>{end}</td></tr>"
