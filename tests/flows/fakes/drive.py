# SPDX-License-Identifier: Apache-2.0
"""Run the fake graph in a process of its own: `python drive.py CAPTURE RUN [stage.option=value ...]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes import GRAPH
from real2sim.flows.config import parse_setting
from real2sim.flows.observer import Observer
from real2sim.flows.reconstruct import reconstruct
from real2sim.flows.rundir import Request
from real2sim.interrupt import interruptible


def write_page(summary, produced, path, title):
    path.write_text(title)


def main() -> int:
    capture, run, *settings = sys.argv[1:]
    request = Request(
        Path(capture), Path(run), Path(run).parent / ".real2sim", settings=tuple(map(parse_setting, settings))
    )
    with interruptible(lambda: None):
        return reconstruct(request, GRAPH, Observer(), report=write_page).exit_code


if __name__ == "__main__":
    sys.exit(main())
