# SPDX-License-Identifier: Apache-2.0
"""The report is one file that needs nothing else, says why a run was refused, and escapes what came from outside."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from real2sim.sim.gates import Gate
from real2sim.stages.report import duration, gate_card, verdict, write_report

HOSTILE = "<script>alert(1)</script>.jpg"
MOST_BYTES = 3_000_000
PASSED = Gate("registered", 1.0, 0.8, True, "40 of 40")
FAILED = Gate("parallax", 1.2, 4.0, False, "seen under 1.2 degrees", "Step sideways between photos.", "deg")


class Page(HTMLParser):
    """Collects what a page refers to, and checks that its tags are balanced."""

    VOID = frozenset({"meta", "img", "br", "hr", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data")]
        assert not any(key.startswith("on") for key, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(tmp_path: Path, artifacts: dict[str, Path], gates: list[Gate], summary: dict[str, Any], **more: Any) -> Page:
    manifests = [
        {"stage": name, "key": "ab" * 32, "version": "1", "backend": "cpu", "seconds": 3.25, "peak_memory_gb": 0.5,
         "metrics": {"points": 1234}, "notes": ["a note"], "log": []}
        for name in artifacts
    ]  # fmt: skip
    path = tmp_path / "report.html"
    write_report(path, title="desk", manifests=manifests, artifacts=artifacts, gates=gates, summary=summary, **more)
    text = path.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert "http" not in text.replace("http-equiv", "")
    parsed = Page(text)
    assert all(link.startswith("data:image/") for link in parsed.links)
    assert "script" not in parsed.tags
    return parsed


def test_complete_run_shows_every_section(made_artifacts: dict[str, Path], made_run: Path, tmp_path: Path) -> None:
    artifacts = {k: v for k, v in made_artifacts.items() if v.is_dir()} | {"bundle": made_run}
    gates = [PASSED, Gate.not_applicable("drop", "no support")]
    shown = page(
        tmp_path,
        artifacts,
        gates,
        {"outcome": "good", "seconds_computed": 431.0, "gaussians": 3862, "psnr_heldout": 34.0},
    )
    for words in (
        "Ready to simulate", "16 / 16", "34.0 dB", "7 min 11 s", "3,862", "does not apply", "The collider",
        "support plane",        "real2sim.load", "from_xml_path", "photos/<b>blurred</b>.jpg", "a note", "digest",
    ):  # fmt: skip
        assert words in shown.text, words
    assert any(link.startswith("data:image/webp") for link in shown.links)


def test_refused_run_with_two_stages_says_why_and_what_to_do(made_artifacts: dict[str, Path], tmp_path: Path) -> None:
    artifacts = {name: made_artifacts[name] for name in ("ingest", "sfm")}
    shown = page(tmp_path, artifacts, [PASSED, FAILED], {"outcome": "refused", "stopped_at": "sfm"})
    assert "Refused" in shown.text and "Ready" not in shown.text
    assert shown.text.index("Step sideways") < shown.text.index("Is it right?")
    assert "real2sim.load" not in shown.text and "What ran" in shown.text


def test_run_that_ended_before_any_stage_still_has_a_page(tmp_path: Path) -> None:
    shown = page(tmp_path, {}, [], {"outcome": "refused", "error": f"{HOSTILE}: no image could be read."})
    assert HOSTILE in shown.text and "Refused" in shown.text


def test_hostile_names_are_escaped_everywhere(made_artifacts: dict[str, Path], tmp_path: Path) -> None:
    ingest = tmp_path / "ingest"
    ingest.mkdir()
    (ingest / "images").symlink_to(made_artifacts["ingest"] / "images")
    data = json.loads((made_artifacts["ingest"] / "frames.json").read_text())
    for frame in data["frames"]:
        frame["capture_path"] = f'"><img src=x onerror=alert(1)>{HOSTILE}'
    data["ledger"] = [{"path": HOSTILE, "status": "rejected", "reason": HOSTILE, "frame": None}]
    data["groups"][0]["source"] = HOSTILE
    (ingest / "frames.json").write_text(json.dumps(data))
    gate = Gate("level", 1.0, 0.5, False, HOSTILE, HOSTILE)
    shown = page(tmp_path, {"ingest": ingest}, [gate], {"outcome": "refused", "error": HOSTILE})
    assert shown.text.count(HOSTILE) >= 4


@pytest.mark.parametrize(
    ("outcome", "allowed", "gates", "state"),
    [
        ("good", [], [PASSED], "passed"),
        ("good", ["parallax"], [PASSED, FAILED], "waived"),
        ("refused", [], [FAILED], "refused"),
        ("try again", [], [PASSED], "stopped"),
        ("defect", [], [], "stopped"),
    ],
)
def test_headline_follows_the_outcome(outcome: str, allowed: list[str], gates: list[Gate], state: str) -> None:
    found = verdict({"outcome": outcome, "allowed": allowed}, gates)
    assert found["state"] == state
    assert [r["evidence"] for r in found["reasons"]] == [g.evidence for g in gates if not g.passed]


def test_gate_cards_show_value_threshold_and_side() -> None:
    at_least, at_most = gate_card(PASSED, []), gate_card(Gate("drop", 0.0031, 0.002, False, "", "", "m"), [])
    assert (at_least["value"], at_least["threshold"], at_least["bound"]) == ("100%", "80%", "at least")
    assert (at_most["value"], at_most["threshold"], at_most["bound"]) == ("3.1 mm", "2 mm", "at most")
    assert (at_least["state"], at_most["state"]) == ("passed", "failed")
    assert gate_card(FAILED, ["parallax"])["state"] == "waived"
    assert gate_card(FAILED, [])["bound"] == "at least"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.96, "60.0 s"), (61, "1 min 01 s"), (3720, "1 h 02 min")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
