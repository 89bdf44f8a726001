# SPDX-License-Identifier: Apache-2.0
"""A contact sheet: small pictures in rows, framed in green or red, named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

TILE = (128, 96)  # px
MARGIN, LABEL = 4, 12  # px
GOOD, BAD, PAPER, INK = (46, 125, 50), (198, 40, 40), (255, 255, 255), (60, 60, 60)


@dataclass(frozen=True)
class Thumbnail:
    """One picture of a sheet."""

    file: Path
    label: str
    good: bool


def choose(items: Sequence[Thumbnail], limit: int) -> list[Thumbnail]:
    """At most `limit` of many, in order: the bad ones first of all, the good ones spread evenly."""
    bad = [i for i, item in enumerate(items) if not item.good][: limit // 2]
    good = [i for i, item in enumerate(items) if item.good]
    room = limit - len(bad)
    spread = np.linspace(0, len(good) - 1, min(room, len(good))).round().astype(int).tolist() if good else []
    return [items[i] for i in sorted({*bad, *(good[k] for k in spread)})]


def write_contact_sheet(path: Path, items: Sequence[Thumbnail], columns: int = 8) -> None:
    """Write a PNG of the pictures, `columns` in a row."""
    width, height = TILE[0] + 2 * MARGIN, TILE[1] + 2 * MARGIN + LABEL
    rows = max(1, -(-len(items) // columns))
    sheet = Image.new("RGB", (width * columns, height * rows), PAPER)
    draw = ImageDraw.Draw(sheet)
    for k, item in enumerate(items):
        x, y = (k % columns) * width, (k // columns) * height
        with Image.open(item.file) as image:
            image.draft("RGB", (2 * TILE[0], 2 * TILE[1]))
            picture = image.convert("RGB")
        picture.thumbnail(TILE)
        left, top = x + MARGIN + (TILE[0] - picture.width) // 2, y + MARGIN + (TILE[1] - picture.height) // 2
        frame = (left - 3, top - 3, left + picture.width + 2, top + picture.height + 2)
        draw.rectangle(frame, fill=GOOD if item.good else BAD)
        sheet.paste(picture, (left, top))
        draw.text((x + MARGIN, y + height - LABEL), item.label[:21], fill=INK)
    sheet.save(path, "PNG")
