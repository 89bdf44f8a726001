# SPDX-License-Identifier: Apache-2.0
"""Which pairs of images to match: all, neighbours in order, or those that look alike (VLAD, Jégou et al. 2010)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORDS, TRAINING, ROUNDS = 64, 20000, 8  # visual words, descriptors to learn them from, rounds of k-means
SEED = 0

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Pairing:
    """Pairs in name order, and how they were chosen."""

    pairs: Pairs
    how: str


def choose_pairs(
    names: Sequence[str],
    ordered: bool,
    matching: str,
    exhaustive_limit: int,
    overlap: int,
    similar: int,
    descriptors: Callable[[], Mapping[str, NDArray[np.uint8]]],
) -> Pairing:
    """Pairs for "exhaustive", "sequential", "similar" or "auto"; descriptors() is called only where it is needed.

    auto: all pairs of few images; neighbours and look-alikes of an ordered sequence; look-alikes of many unordered.
    """
    n = len(names)
    if matching == "auto":
        matching = "exhaustive" if n <= exhaustive_limit else "sequential" if ordered else "similar"
    if matching == "exhaustive":
        return Pairing([(a, b) for i, a in enumerate(names) for b in names[i + 1 :]], f"all {n * (n - 1) // 2} pairs")
    chosen = neighbours_in_order(n, overlap) if matching == "sequential" else set()
    chosen |= most_similar(vlad([descriptors()[name] for name in names]), similar)
    how = f"{overlap} neighbours in order and " if matching == "sequential" else ""
    pairs = [(names[i], names[j]) for i, j in sorted(chosen)]
    return Pairing(pairs, f"{how}{similar} look-alikes of each image, {len(pairs)} pairs")


def neighbours_in_order(n: int, overlap: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, at distances 1 … overlap, and at powers of two up to twice the overlap's square."""
    steps = set(range(1, overlap + 1)) | {2**k for k in range(1, 31) if 2**k <= 2 * overlap**2}
    return {(i, i + step) for step in steps for i in range(n - step)}


def most_similar(vectors: NDArray[np.float32], count: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, where j is among the `count` unit vectors [N, D] nearest to i, or i among j's."""
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    nearest = np.argsort(-likeness, axis=1, kind="stable")[:, : min(count, len(vectors) - 1)]
    return {(min(i, int(j)), max(i, int(j))) for i, row in enumerate(nearest) for j in row}


def vlad(descriptors: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """One unit vector [WORDS * 128] per image: residuals of its descriptors [N, 128] to visual words, by word."""
    words = _visual_words(descriptors)
    out = np.zeros((len(descriptors), len(words), words.shape[1]), np.float32)
    for vector, stored in zip(out, descriptors):
        d = stored.astype(np.float32)
        nearest = _nearest(d, words)
        np.add.at(vector, nearest, d - words[nearest])
        vector /= np.maximum(np.linalg.norm(vector, axis=1, keepdims=True), 1e-9)
    flat = out.reshape(len(out), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)


def _visual_words(descriptors: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Centres [WORDS, 128] of k-means over a sample of all descriptors."""
    everything = np.concatenate([np.zeros((1, 128), np.uint8), *descriptors])
    rng = np.random.default_rng(SEED)
    sample = everything[np.sort(rng.choice(len(everything), min(TRAINING, len(everything)), replace=False))]
    sample = sample.astype(np.float32)
    words = sample[rng.choice(len(sample), min(WORDS, len(sample)), replace=False)]
    for _ in range(ROUNDS):
        nearest = _nearest(sample, words)
        for k in np.unique(nearest):
            words[k] = sample[nearest == k].mean(0)
    return words


def _nearest(descriptors: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.intp]:
    return np.argmin((words**2).sum(1)[None] - 2 * descriptors @ words.T, axis=1)
