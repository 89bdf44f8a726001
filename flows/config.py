# SPDX-License-Identifier: Apache-2.0
"""Resolve each stage's Config: the dataclass's defaults, under a YAML file, under `--set stage.option=value`.

An unknown stage or option, or a value of another type, is an error that names the nearest and what would be right.
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Union

import yaml

from real2sim.errors import UsageError
from real2sim.flows.digest import JsonCache, sha256_json
from real2sim.flows.graph import Graph, Stage
from real2sim.flows.sources import source_digests

_NONE_WORDS = ("none", "null", "")
_BOOL_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Setting(NamedTuple):
    """One value for one option, and where it was written, for the message if it is wrong."""

    stage: str
    option: str
    value: Any
    origin: str


def parse_setting(text: str) -> Setting:
    """The setting of `--set stage.option=value`."""
    left, equals, value = text.partition("=")
    stage, dot, option = left.strip().partition(".")
    if not (equals and dot and option):
        raise UsageError(f"--set {text}: expected stage.option=value, such as splat.steps=3000.")
    return Setting(stage, option, value.strip(), f"--set {text}")


@dataclass(frozen=True)
class Options:
    """A stage's version and resolved config as JSON holds it; `config` makes its Config, importing the stage."""

    version: str
    values: Mapping[str, Any]
    config: Callable[[], Any]


def resolve(graph: Graph, file: Path | None, settings: Sequence[Setting], known: JsonCache) -> dict[str, Options]:
    """The options of every stage. file: YAML of `stage: {option: value}`; settings come over it, the last one wins.

    known: what the same source and the same settings came to before; a stage found there is not imported, so that a run
    that computes nothing starts at once.
    """
    names = [stage.name for stage in graph.stages]
    chosen: dict[str, dict[str, Setting]] = {name: {} for name in names}
    for setting in [*_from_file(file), *settings]:
        _must_know(setting.stage, names, f"{setting.origin}: there is no stage", "Stages")
        chosen[setting.stage][setting.option] = setting
    return {stage.name: _options(stage, list(chosen[stage.name].values()), known) for stage in graph.stages}


def _options(stage: Stage, settings: list[Setting], known: JsonCache) -> Options:
    key = sha256_json([source_digests(stage.module), [[s.option, repr(s.value)] for s in settings]])
    config = functools.partial(_make, stage, settings)
    seen = known.get(key)
    if not isinstance(seen, dict) or seen.keys() != {"version", "values"}:
        seen = {"version": stage.load().VERSION, "values": asdict(config())}
        known.put(key, seen)
    return Options(seen["version"], seen["values"], config)


def _make(stage: Stage, settings: list[Setting]) -> Any:
    """A stage's Config from its defaults and settings."""
    config_type = stage.load().Config
    hints = typing.get_type_hints(config_type)
    values = {}
    for _, option, value, origin in settings:
        _must_know(option, hints, f"{origin}: stage {stage.name} has no option", "Its options")
        values[option] = _typed(value, hints[option], origin)
    try:
        return config_type(**values)
    except ValueError as error:
        raise UsageError(f"Stage {stage.name}: {error}") from error


def packaged_configs() -> list[str]:
    """Names of the configs that come with the package, for `--config NAME`."""
    folder = importlib.resources.files("real2sim").joinpath("configs")
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def find_config(name: str) -> Path:
    """The YAML file of `--config`: a path, or the name of one that comes with the package."""
    path = Path(name)
    if path.is_file():
        return path
    packaged = Path(str(importlib.resources.files("real2sim").joinpath("configs", f"{name}.yaml")))
    if packaged.is_file():
        return packaged
    raise UsageError(
        f"--config {name}: neither a file nor one of the configs that come with real2sim"
        f" ({', '.join(packaged_configs())}). Give the path of a YAML file."
    )


def _from_file(file: Path | None) -> Iterable[Setting]:
    if file is None:
        return
    try:
        data = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: not a readable YAML file ({error}).") from error
    for stage, options in _mapping(data, str(file), "stage: {option: value}").items():
        for option, value in _mapping(options, f"{file}: {stage}", "option: value").items():
            yield Setting(str(stage), str(option), value, f"{file}: {stage}.{option}")


def _mapping(data: Any, where: str, form: str) -> Mapping[Any, Any]:
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise UsageError(f"{where}: expected lines of the form `{form}`, received {data!r}.")
    return data


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name most like a word."""
    return difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)[0]


def _must_know(name: str, known: Iterable[str], problem: str, title: str) -> None:
    names = list(known)
    if name not in names:
        meant = f" Did you mean {nearest(name, names)!r}?" if names else ""
        raise UsageError(f"{problem} {name!r}.{meant} {title}: {', '.join(names) or 'none'}.")


def _typed(value: Any, hint: Any, origin: str) -> Any:
    """A YAML value or a word of the command line as the type that an option is declared with."""
    try:
        return _convert(value, hint)
    except (ValueError, TypeError, OverflowError, yaml.YAMLError) as error:
        raise UsageError(f"{origin}: expected {_describe(hint)}, received {value!r}.") from error


def _convert(value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _one_of(value, arguments)
    if origin in (Union, types.UnionType):
        return _first_that_fits(value, arguments)
    if origin in (tuple, list):
        return _sequence(value, origin, arguments)
    if hint is type(None):
        if value is None or (isinstance(value, str) and value.lower() in _NONE_WORDS):
            return None
        raise ValueError
    return _SCALARS[hint](value)


def _one_of(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if value == choice or (isinstance(value, str) and value == str(choice)):
            return choice
    raise ValueError


def _first_that_fits(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in sorted(hints, key=lambda h: h is str):  # a word that is also a number, or none, is that first
        try:
            return _convert(value, hint)
        except (ValueError, TypeError):
            continue
    raise ValueError


def _sequence(value: Any, kind: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(value, str):
        value = yaml.safe_load(value if value.startswith("[") else f"[{value}]")
    if not isinstance(value, list | tuple):
        raise ValueError
    if kind is list or (len(arguments) == 2 and arguments[1] is Ellipsis):
        return kind(_convert(item, arguments[0]) for item in value)
    if len(value) != len(arguments):
        raise ValueError
    return tuple(_convert(item, hint) for item, hint in zip(value, arguments))


def _bool(value: Any) -> bool:
    if isinstance(value, str):
        value = _BOOL_WORDS.get(value.lower(), value)
    return value if isinstance(value, bool) else _refuse()


def _int(value: Any) -> int:
    if isinstance(value, str):
        value = float(value) if not value.lstrip("+-").isdigit() else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        _refuse()
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or not math.isfinite(float(value)):
        _refuse()
    return float(value)


def _str(value: Any) -> str:
    return value if isinstance(value, str) else _refuse()


def _refuse() -> NoReturn:
    raise ValueError


_SCALARS = {bool: _bool, int: _int, float: _float, str: _str}


def _describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(a) for a in arguments)
    if origin in (tuple, list):
        return "a list of " + _describe(arguments[0])
    if hint is type(None):
        return "none"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[hint]
