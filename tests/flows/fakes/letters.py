# SPDX-License-Identifier: Apache-2.0
"""Every letter of the capture's files, sorted; punctuation is dropped, so that some changes end here."""

from dataclasses import dataclass

from fakes import count
from real2sim.stages.contract import Result

VERSION = "1"


@dataclass(frozen=True)
class Config:
    upper: bool = False


def run(inputs, config, out, scratch, progress):
    count("letters")
    files = sorted(p for p in inputs["capture"].rglob("*") if p.is_file())
    text = "".join(c for p in files for c in p.read_text() if c.isalpha() or c == " ")
    if "poses" in inputs:
        text += inputs["poses"].read_text().strip()
    (out / "letters.txt").write_text(text.upper() if config.upper else text)
    progress.log("backend auto: plain")
    return Result(metrics={"letters": len(text)}, backend="plain")
