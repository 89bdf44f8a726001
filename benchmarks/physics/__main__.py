# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks, prints ours beside the peers, writes JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.physics import contacts, grasp, speed
from benchmarks.physics.contacts import Row


def entries(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One entry for each of our measurements, with the best peer of the same name beside it."""
    rows = list(rows)
    out = []
    for name, engine, value, unit, bar, direction, how in rows:
        if not engine.startswith("real2sim"):
            continue
        peers = [(v, e) for n, e, v, *_ in rows if n == name and not e.startswith("real2sim")]
        peer = (max if direction == "min" else min)(peers, default=None)
        met = None if bar is None else bool(value >= bar if direction == "min" else value <= bar)
        ratio = value / peer[0] if peer and peer[0] else None
        label = name if engine == "real2sim" else f"{name} ({engine.removeprefix('real2sim ')})"
        out.append({"name": label, "value": value, "unit": unit, "bar": bar, "direction": direction,
                    "peer": {"name": peer[1], "value": peer[0]} if peer else None, "ratio": ratio, "met": met, "how": how})  # fmt: skip  # noqa: E501
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.physics", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter trials")
    parser.add_argument("--json", type=Path, help="write the list of results here")
    parser.add_argument("--robots", type=Path, default=Path("robots"), help="folder with MuJoCo Menagerie models")
    parser.add_argument("--only", help="run the benchmarks whose function name contains this")
    parser.add_argument("--profile", action="store_true", help="only print where the time of a step goes")
    args = parser.parse_args()
    if args.profile:
        for name, shares in speed.profile(args.robots):
            print(f"{name}: " + ", ".join(f"{phase} {100 * share:.1f}%" for phase, share in shares))
        return
    results: list[dict[str, Any]] = []
    for bench in (*contacts.ALL, *grasp.ALL, *speed.ALL):
        if args.only and args.only not in bench.__name__:
            continue
        for e in entries(bench(args.quick, args.robots)):
            peer = f"{e['peer']['value']:.6g} ({e['peer']['name']})" if e["peer"] else "-"
            bar = "" if e["bar"] is None else f"bar {e['bar']:g}: {'met' if e['met'] else 'NOT MET'}"
            print(f"{e['name']:<90} {e['value']:>12.6g} {e['unit']:<5} best peer {peer:<50} {bar}", flush=True)
            results.append(e)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
