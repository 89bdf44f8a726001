# SPDX-License-Identifier: Apache-2.0
"""What lies in a capture: photos and videos by source, masks and depth maps by image. Nothing is opened here.

The capture's own folder is the source "."; each sub-folder with images is a further source, named by its path; each
video is a source. `masks/` and `depth/` at the top are reserved; hidden files and folders are ignored.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from real2sim.errors import CaptureError
from real2sim.stages.image_names import match_names

PHOTO_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"})
HEIF_SUFFIXES = frozenset({".heic", ".heif"})
UNREAD_SUFFIXES = frozenset({".avif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".rw2", ".orf", ".gif"})
VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm"})
DEPTH_SUFFIXES = frozenset({".png", ".tif", ".tiff"})
RESERVED = ("masks", "depth")
REDUCED_COPIES = re.compile(r"^(?P<full>.+)_(2|4|8|16)$")  # nerfstudio's images_2 … beside images


@dataclass
class Layout:
    """Paths relative to `root`, in natural order. unread: image files of kinds that are not read, with the reason."""

    root: Path
    photos: list[str] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    masks: dict[str, str] = field(default_factory=dict)  # image -> mask file, white = ignore
    keep_masks: dict[str, str] = field(default_factory=dict)  # image -> mask file of another tool, black = ignore
    depths: dict[str, str] = field(default_factory=dict)  # image -> depth file
    strays: list[str] = field(default_factory=list)  # masks and depth maps that fit no image


def read_layout(capture: Path) -> Layout:
    """Sort the files of a capture; raises CaptureError where the path is missing or holds no image at all."""
    if not capture.exists():
        raise CaptureError(f"{capture}: no such file or folder. Give the folder of photos, or a video file.")
    if capture.is_file():
        return _single_file(capture)
    layout = Layout(capture)
    extra: dict[str, list[str]] = {name: [] for name in RESERVED}
    for path in _walk(capture):
        top, suffix = path.split("/")[0], Path(path).suffix.lower()
        if top in RESERVED and "/" in path:
            if suffix in DEPTH_SUFFIXES | PHOTO_SUFFIXES:
                extra[top].append(path.removeprefix(top + "/"))
        elif suffix in PHOTO_SUFFIXES or (suffix in HEIF_SUFFIXES and can_read_heif()):
            layout.photos.append(path)
        elif suffix in HEIF_SUFFIXES:
            layout.unread[path] = f"{suffix} needs a reader: pip install 'real2sim[heic]', or export it as JPEG"
        elif suffix in VIDEO_SUFFIXES:
            layout.videos.append(path)
        elif suffix in UNREAD_SUFFIXES:
            layout.unread[path] = f"{suffix} files are not read; export it as JPEG, PNG or TIFF"
    _set_aside_reduced_copies(layout)
    if not layout.photos and not layout.videos and not layout.unread:
        raise CaptureError(f"{capture}: holds no photo and no video. Put JPEG, PNG or TIFF photos or a video there.")
    layout.masks = _by_image(layout, "masks", extra["masks"])
    layout.depths = _by_image(layout, "depth", extra["depth"])
    return layout


def can_read_heif() -> bool:
    """Whether the extra that decodes phones' HEIC photos is installed."""
    return importlib.util.find_spec("pi_heif") is not None


def source_of(path: str) -> str:
    """The source that an image or a video belongs to."""
    if Path(path).suffix.lower() in VIDEO_SUFFIXES:
        return path
    return path.rpartition("/")[0] or "."


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """Sort key under which "img2" comes before "img10"."""
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", path.casefold())]


def is_numbered_sequence(names: list[str]) -> bool:
    """Whether the stems of one source differ by one running number, as a camera or a frame extractor writes them."""
    matches = [re.fullmatch(r"(.*?)(\d+)", Path(name).stem) for name in names]
    return len(names) > 1 and len({m.group(1) if m else object() for m in matches}) == 1


def _single_file(path: Path) -> Layout:
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return Layout(path.parent, videos=[path.name])
    raise CaptureError(
        f"{path}: expected a folder of photos or a video ({', '.join(sorted(VIDEO_SUFFIXES))}). One photo alone has no"
        " depth: give the folder that holds the others too."
    )


def _walk(root: Path) -> list[str]:
    """Files below a folder, through links, each real folder once."""
    found, visited = [], {os.path.realpath(root)}
    for folder, folders, files in os.walk(root, followlinks=True):
        shown = sorted(n for n in folders if not n.startswith(".") and not is_own_output(os.path.join(folder, n)))
        folders[:] = [name for name in shown if _first_visit(os.path.join(folder, name), visited)]
        base = Path(folder).relative_to(root)
        found += [(base / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(found, key=lambda path: (natural_key(path), path))


def is_own_output(folder: str) -> bool:
    """Whether a folder is a run or a bundle: neither is ever a part of a capture."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in ("run.json", "bundle.json"))


def _first_visit(folder: str, visited: set[str]) -> bool:
    real = os.path.realpath(folder)
    first = real not in visited
    visited.add(real)
    return first


def _set_aside_reduced_copies(layout: Layout) -> None:
    sources = {source_of(path) for path in layout.photos}
    copies = {s: m["full"] for s in sources if (m := REDUCED_COPIES.match(s)) and m["full"] in sources}
    for path in [p for p in layout.photos if source_of(p) in copies]:
        layout.photos.remove(path)
        layout.unread[path] = f"{source_of(path)}/ holds reduced copies of {copies[source_of(path)]}/"


def _by_image(layout: Layout, kind: str, files: list[str]) -> dict[str, str]:
    """Image -> file of masks/ or depth/; raises CaptureError where a file could serve more than one image."""
    found = match_names(layout.photos, files)
    strays = sorted(set(files) - set(found.values()), key=files.index)
    stems = {Path(image).stem: image for image in layout.photos}
    for file in strays:
        image = stems.get(Path(file).stem)
        if image is not None and "/" not in file:
            raise CaptureError(
                f"{layout.root / kind / file}: could belong to several images, such as {image}. Put it at"
                f" {kind}/{Path(image).with_suffix('.png').as_posix()}, and one for each image."
            )
    layout.strays += [f"{kind}/{file}" for file in strays]
    return {image: f"{kind}/{file}" for image, file in found.items()}
