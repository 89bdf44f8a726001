# SPDX-License-Identifier: Apache-2.0
"""The side branch: how long the text is, in lines of a width."""

from dataclasses import dataclass

from fakes import count
from real2sim.stages.contract import Result

VERSION = "1"


@dataclass(frozen=True)
class Config:
    width: int = 10


def run(inputs, config, out, scratch, progress):
    count("shape")
    length = len((inputs["letters"] / "letters.txt").read_text())
    (out / "shape.txt").write_text(f"{-(-length // config.width)}\n")
    return Result()
