# SPDX-License-Identifier: Apache-2.0
"""JPEG files as segments: drop metadata without touching the coded pixels (ITU-T T.81, annex B)."""

from __future__ import annotations

SOI, EOI, SOS, COM = 0xD8, 0xD9, 0xDA, 0xFE
APP0, APP14, APP15 = 0xE0, 0xEE, 0xEF  # APP0 (JFIF) and APP14 (Adobe) say how colours are coded, so they stay


def strip_metadata(data: bytes) -> bytes:
    """The same coded pixels without EXIF, ICC, XMP, comments, previews, and without what follows the first image."""
    out = bytearray(data[:2])
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise ValueError(f"no JPEG marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == SOS:
            return bytes(out + data[at : _end_of_image(data, end)])
        if not _is_metadata(marker):
            out += data[at:end]
        at = end
    raise ValueError("no image data in the JPEG file")


def _is_metadata(marker: int) -> bool:
    return marker == COM or (APP0 < marker <= APP15 and marker != APP14)


def _end_of_image(data: bytes, start: int) -> int:
    """Byte after the EOI marker that ends the image whose first scan's entropy-coded bytes start at `start`."""
    at = start
    while (at := data.find(b"\xff", at)) >= 0 and at + 1 < len(data):
        marker = data[at + 1]
        if marker == EOI:
            return at + 2
        has_length = marker not in (0x00, 0x01, 0xFF) and not 0xD0 <= marker <= SOI
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big") if has_length else 1
    return len(data)
