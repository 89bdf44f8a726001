# SPDX-License-Identifier: Apache-2.0
"""What a person says about objects: CAPTURE/objects.yaml, by label, over what is assumed without it.

object_1: {material: ceramic}          # density and friction from the table below
object_2: {mass_kg: 0.35, friction: 0.5}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from real2sim.errors import CaptureError

FILE = "objects.yaml"
KEYS = ("material", "mass_kg", "density", "friction", "restitution")
# Density [kg/m3] as low, value, high of a thing of this make, its hollows included; sliding friction on wood.
MATERIALS: dict[str, tuple[tuple[float, float, float], float]] = {
    "unknown": ((150.0, 400.0, 1200.0), 0.5),
    "cardboard": ((100.0, 300.0, 700.0), 0.45),
    "paper": ((500.0, 700.0, 900.0), 0.45),
    "can": ((800.0, 1000.0, 1200.0), 0.4),
    "ceramic": ((600.0, 1000.0, 2300.0), 0.5),
    "plastic": ((100.0, 400.0, 1200.0), 0.4),
    "wood": ((400.0, 600.0, 800.0), 0.5),
    "foam": ((30.0, 100.0, 300.0), 0.7),
    "metal": ((2500.0, 5000.0, 8000.0), 0.35),
    "glass": ((500.0, 1200.0, 2600.0), 0.4),
}


def _range(low: float, value: float, high: float, source: str) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "source": source}


@dataclass(frozen=True)
class Card:
    """What is known of one object; None: not said."""

    material: str = "unknown"
    mass_kg: float | None = None
    density_kg_m3: float | None = None
    sliding: float | None = None
    bounce: float | None = None

    def mass_of(self, volume: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Mass [kg] and density [kg/m3] of a volume [m3], each with value, low, high, source."""
        if self.mass_kg is not None:
            given = self.mass_kg
            source = f"{FILE}: mass_kg"
            density = given / volume
            return _range(given, given, given, source), _range(density, density, density, source)
        low, value, high = MATERIALS[self.material][0]
        source = (
            f"material table: {self.material}" if self.material != "unknown" else "assumed: unknown household object"
        )
        if self.density_kg_m3 is not None:
            low = value = high = self.density_kg_m3
            source = f"{FILE}: density"
        mass = _range(low * volume, value * volume, high * volume, f"volume x density ({source})")
        return mass, _range(low, value, high, source)

    @property
    def friction(self) -> dict[str, Any]:
        """Sliding friction [-]."""
        if self.sliding is not None:
            return _range(self.sliding, self.sliding, self.sliding, f"{FILE}: friction")
        value = MATERIALS[self.material][1]
        return _range(0.6 * value, value, 1.5 * value, f"material table: {self.material}, dry contact, not measured")

    @property
    def restitution(self) -> dict[str, Any]:
        """Share of the normal speed that a bounce keeps [-]."""
        if self.bounce is not None:
            return _range(self.bounce, self.bounce, self.bounce, f"{FILE}: restitution")
        return _range(0.0, 0.1, 0.5, "assumed, not measured")


def read_cards(capture: Path) -> dict[str, Card]:
    """Cards by label; none where the capture has no objects.yaml. CaptureError names the object and the key."""
    path = capture / FILE
    if not capture.is_dir() or not path.is_file():
        return {}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CaptureError(f"{path}: not a readable YAML file ({error}).") from error
    if not isinstance(data, dict):
        raise CaptureError(f"{path}: expected lines of the form `object_1: {{mass_kg: 0.3}}`, received {data!r}.")
    return {str(label): _card(path, str(label), row) for label, row in data.items()}


def _card(path: Path, label: str, row: Any) -> Card:
    where = f"{path}: {label}"
    if not isinstance(row, dict):
        raise CaptureError(f"{where}: expected {{key: value}}, received {row!r}. Keys: {', '.join(KEYS)}.")
    for key, value in row.items():
        if key not in KEYS:
            raise CaptureError(f"{where}: there is no key {key!r}. Keys: {', '.join(KEYS)}.")
        if key == "material":
            if value not in MATERIALS:
                raise CaptureError(f"{where}: there is no material {value!r}. Materials: {', '.join(MATERIALS)}.")
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value < 0
            or (value == 0 and key[0] in "md")
        ):
            raise CaptureError(f"{where}: {key} must be a positive number, received {value!r}.")
    numbers = [row.get(key) for key in ("mass_kg", "density", "friction", "restitution")]
    return Card(row.get("material", "unknown"), *(None if n is None else float(n) for n in numbers))
