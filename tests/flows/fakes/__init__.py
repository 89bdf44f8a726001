# SPDX-License-Identifier: Apache-2.0
"""Tiny stages with the shape of the real ones: a chain, a side branch, and a result that needs both.

letters(capture) -> words(letters) ; shape(letters) ; page(letters, words, shape, provenance)
Each appends its name to the file named in FAKES_COUNT, so that a test sees what ran.
"""

from __future__ import annotations

import os
from pathlib import Path

from real2sim.flows.graph import Graph, Stage


def count(stage: str) -> None:
    """Note that a stage ran, in one write that two processes cannot mix."""
    fd = os.open(os.environ["FAKES_COUNT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{stage}\n".encode())
    os.close(fd)


def ran() -> list[str]:
    """The stages that ran so far, in order."""
    path = Path(os.environ["FAKES_COUNT"])
    return path.read_text().split() if path.exists() else []


GRAPH = Graph(
    stages=(
        Stage("letters", "fakes.letters", ("capture",), optional=("poses",)),
        Stage("words", "fakes.words", ("letters",), tools=("numpy",), gates=("enough",)),
        Stage("shape", "fakes.shape", ("letters",)),
        Stage("page", "fakes.page", ("letters", "words", "shape", "provenance"), gates=("readable",)),
    ),
    result="page",
    headlines={"frames": (("letters", "letters"), ("words", "words"))},
)
