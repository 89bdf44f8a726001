# SPDX-License-Identifier: Apache-2.0
"""The model: MuJoCo parses and compiles MJCF; this module checks what is in it and hands plain arrays to the core."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real2sim.errors import UsageError
from real2sim.sim.physics import layout, support


class UnsupportedFeature(UsageError):
    """The model uses an element that the core does not have. `findings` lists every one."""

    def __init__(self, findings: Sequence[str], source: str) -> None:
        self.findings = list(findings)
        lines = "\n".join(f"  - {f}" for f in findings)
        super().__init__(
            f"{source}: the physics core does not support\n{lines}\nRemove these elements, or step the model with MuJoCo."
        )


@dataclass(frozen=True)
class Model:
    """A compiled model.

    mj: MuJoCo's compiled model (names, sizes, numbers).
    replaced: solver options of the file that the core replaces by its own (listed, never refused).
    """

    mj: Any
    source: str
    replaced: tuple[str, ...]

    @classmethod
    def from_mjcf(cls, path_or_xml: str | os.PathLike[str]) -> Model:
        """Compile an MJCF file, or an MJCF string (anything that starts with `<`)."""
        import mujoco

        text = os.fspath(path_or_xml)
        if text.lstrip().startswith("<"):
            return cls.from_mjmodel(mujoco.MjModel.from_xml_string(text), source="MJCF string")
        if not Path(text).is_file():
            raise UsageError(f"A model is an MJCF file or string; {text!r} is no file. Check the path.")
        return cls.from_mjmodel(mujoco.MjModel.from_xml_path(text), source=text)

    @classmethod
    def from_mjmodel(cls, mj: Any, source: str = "MjModel") -> Model:
        """Take a compiled `mujoco.MjModel`; raises `UnsupportedFeature` naming every element that the core lacks."""
        findings = support.unsupported(mj)
        if findings:
            raise UnsupportedFeature(findings, source)
        return cls(mj, source, tuple(support.replaced(mj)))

    def arrays(self) -> layout.CoreArrays:
        """What the core reads, by field name."""
        return layout.core_arrays(self.mj)

    def id(self, kind: str, name: str) -> int:
        """Index of a named element; kind: body, joint, geom, site, actuator, sensor, tendon, camera, key, equality."""
        import difflib

        import mujoco

        objects = {"body": mujoco.mjtObj.mjOBJ_BODY, "joint": mujoco.mjtObj.mjOBJ_JOINT, "geom": mujoco.mjtObj.mjOBJ_GEOM,
                   "site": mujoco.mjtObj.mjOBJ_SITE, "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR, "sensor": mujoco.mjtObj.mjOBJ_SENSOR,  # noqa: E501
                   "tendon": mujoco.mjtObj.mjOBJ_TENDON, "camera": mujoco.mjtObj.mjOBJ_CAMERA, "key": mujoco.mjtObj.mjOBJ_KEY,
                   "equality": mujoco.mjtObj.mjOBJ_EQUALITY}  # fmt: skip
        if kind not in objects:
            raise UsageError(f"A kind of element is one of {', '.join(objects)}; got {kind!r}.")
        index = int(mujoco.mj_name2id(self.mj, objects[kind], name))
        if index < 0:
            count = {
                "equality": self.mj.neq,
                "joint": self.mj.njnt,
                "camera": self.mj.ncam,
                "actuator": self.mj.nactuator,
            }.get(kind)
            total = count if count is not None else getattr(self.mj, f"n{kind}")
            names = [mujoco.mj_id2name(self.mj, objects[kind], i) or "" for i in range(total)]
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Nearest: {near[0]!r}." if near else ""
            raise UsageError(f"{self.source} has no {kind} named {name!r}.{hint}")
        return index
