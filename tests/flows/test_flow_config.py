# SPDX-License-Identifier: Apache-2.0
"""Options: defaults under a file under `--set`, and errors that name the nearest."""

from __future__ import annotations

import fakes
import fakes.words
import pytest

from real2sim.errors import UsageError
from real2sim.flows.config import Setting, find_config, packaged_configs, parse_setting, resolve
from real2sim.flows.digest import JsonCache, canonical_json
from real2sim.flows.graph import SCENE


@pytest.fixture
def known(tmp_path):
    return JsonCache(tmp_path / "options.json")


@pytest.fixture
def config(known):
    """Resolve settings as written on the command line; returns each stage's Config."""

    def resolved(*settings: str, file=None):
        options = resolve(fakes.GRAPH, file, [parse_setting(s) for s in settings], known)
        return {name: o.config() for name, o in options.items()}

    return resolved


def test_a_setting_wins_over_the_file_and_the_file_over_the_default(config, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("words: {scale: 2, at_least: 5}\nshape:\n")
    words = config("words.scale=3", "words.scale=4", file=file)["words"]
    assert (words.scale, words.at_least, words.ticks) == (4.0, 5, 0)


@pytest.mark.parametrize(
    ("setting", "option", "value"),
    [
        ("words.at_least=7", "at_least", 7),
        ("words.at_least=1e3", "at_least", 1000),
        ("words.scale=1e-3", "scale", 0.001),
        ("words.label=none", "label", None),
        ("words.label=12", "label", "12"),
        ("words.label=a=b", "label", "a=b"),
        ("words.weights=0.5,2", "weights", (0.5, 2.0)),
        ("words.weights=[1]", "weights", (1.0,)),
        ("words.mode=nan", "mode", "nan"),
    ],
)
def test_words_of_the_command_line_become_the_declared_type(config, setting, option, value):
    assert getattr(config(setting)["words"], option) == value


def test_numbers_that_yaml_reads_as_text_are_numbers(config, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("words: {scale: 1e-3}\n")
    assert config(file=file)["words"].scale == 0.001


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("wrods.scale=2", "no stage 'wrods'. Did you mean 'words'"),
        ("words.scael=2", "no option 'scael'. Did you mean 'scale'"),
        ("words.scale", "expected stage.option=value"),
        ("scale=2", "expected stage.option=value"),
        ("words.scale=big", "expected a number, received 'big'"),
        ("words.scale=nan", "expected a number"),
        ("words.scale=true", "expected a number"),
        ("words.at_least=1.5", "expected a whole number"),
        ("words.at_least=", "expected a whole number"),
        ("letters.upper=maybe", "expected true or false"),
        ("words.mode=wrong", "expected one of fine, capture"),
        ("words.weights=1,x", "expected a list of a number"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(config, setting, message):
    with pytest.raises(UsageError, match=message.replace(".", r"\.")) as error:
        config(setting)
    assert setting in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("words: 3", "expected lines of the form"),
        ("- words", "expected lines of the form"),
        ("words: {scale: [1]}", "words.scale: expected a number"),
        ("words: {scale: true}", "expected a number"),
        ("word: {scale: 1}", "Did you mean 'words'"),
        ("a: b: c", "not a readable YAML file"),
    ],
)
def test_a_wrong_file_is_named(config, tmp_path, text, message):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        config(file=file)
    assert "c.yaml" in str(error.value)


def test_a_flag_of_its_own_is_a_setting_with_a_typed_value(known):
    flag = Setting("words", "weights", ("1", "2"), "--weights 1 2")
    assert resolve(fakes.GRAPH, None, [flag], known)["words"].config().weights == (1.0, 2.0)


def test_every_packaged_config_fits_the_real_stages(known):
    assert "quick" in packaged_configs()
    for name in packaged_configs():
        resolve(SCENE, find_config(name), [], known)


def test_an_unknown_config_lists_the_packaged_ones():
    with pytest.raises(UsageError, match="quick"):
        find_config("quikc")


def test_the_same_settings_of_the_same_source_are_resolved_without_importing_the_stage(known, monkeypatch):
    settings = [parse_setting("words.weights=0.5,2")]
    first = resolve(fakes.GRAPH, None, settings, known)
    known.save()
    monkeypatch.setattr("real2sim.flows.graph.Stage.load", lambda stage: pytest.fail(f"{stage.name} was imported"))
    again = resolve(fakes.GRAPH, None, settings, JsonCache(known.path))
    assert {n: (o.version, canonical_json(o.values)) for n, o in again.items()} == {
        n: (o.version, canonical_json(o.values)) for n, o in first.items()
    }


def test_another_source_or_another_setting_is_resolved_anew(config, known, monkeypatch):
    config("words.scale=2")
    monkeypatch.setattr(fakes.words, "VERSION", "2")
    version = lambda *s: resolve(fakes.GRAPH, None, [parse_setting(t) for t in s], known)["words"].version  # noqa: E731
    assert version("words.scale=2") == "1"  # the file did not change
    assert version("words.scale=3") == "2"
    monkeypatch.setattr("real2sim.flows.config.source_digests", lambda module: {module: "changed"})
    assert version("words.scale=2") == "2"


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("ingest.video_fps=0", "above 0"),
        ("splat.steps=-5", "above 0"),
        ("splat.sh_degree=4", "in 0 to 3"),
        ("splat.cap=0", "above 0"),
        ("prune.ratio=0", "above 0"),
        ("prune.ratio=1.5", "in 0 to 1"),
        ("prune.refit_steps=-1", "0 or more"),
        ("align.render_long_side=3", "in 32 to 8192"),
        ("segment.min_score=2", "in 0 to 1"),
        ("background.steps=-1", "0 or more"),
        ("objects.cells=1", "in 8 to 256"),
        ("mesh.voxel_m=-1", "0 or more"),
        ("collision.thickness_m=0", "above 0"),
        ("lift.reach_m=0", "above 0"),
        ("scale.mark_error_px=0", "above 0"),
    ],
)
def test_a_value_out_of_range_is_refused_before_any_stage_runs(known, setting, rule):
    stage, option = setting.split("=")[0].split(".")
    with pytest.raises(UsageError, match=f"Stage {stage}: {option} must be {rule}, received"):
        resolve(SCENE, None, [parse_setting(setting)], known)


def test_a_damaged_cache_of_options_costs_time_only(known):
    first = resolve(fakes.GRAPH, None, [], known)
    for key in list(known._used):
        known.put(key, {"version": 1})
    again = resolve(fakes.GRAPH, None, [], known)
    assert {n: (o.version, o.values) for n, o in again.items()} == {n: (o.version, o.values) for n, o in first.items()}
