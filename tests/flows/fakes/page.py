# SPDX-License-Identifier: Apache-2.0
"""The result: a folder named page, which says what it is made of and which gates were allowed to fail."""

import json
from dataclasses import dataclass

from fakes import count
from real2sim.sim.gates import Gate
from real2sim.stages.contract import Result

VERSION = "1"


@dataclass(frozen=True)
class Config:
    readable: bool = True


def run(inputs, config, out, scratch, progress):
    count("page")
    known = json.loads(inputs["provenance"].read_text())
    words = (inputs["words"] / "part" / "words.txt").read_text().strip()
    (out / "page" / "text").mkdir(parents=True)
    (out / "page" / "page.json").write_text(json.dumps({"words": words, **known}, sort_keys=True))
    (out / "page" / "text" / "all.txt").write_text((inputs["letters"] / "letters.txt").read_text())
    gate = Gate("readable", None, None, config.readable, "by eye", None if config.readable else "Write better.")
    return Result(gates=[gate])
