# SPDX-License-Identifier: Apache-2.0
"""The command line. Only typer is imported here; what a command needs is imported when it runs."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from real2sim import __version__
from real2sim.cli_service import add_service_commands

if TYPE_CHECKING:
    from rich.console import Console

    from real2sim.console import ConsoleObserver

EPILOG = (
    "Exit codes: 0 good; 1 the capture was refused or a gate failed; 2 a wrong option, or not a bundle; "
    "70 a defect of real2sim; 75 memory, disk or device ran short: try again; 130 interrupted, 143 terminated."
)
DEFECT = 70

app = typer.Typer(
    name="real2sim",
    help="Photos or a video of a real place become a simulation-ready bundle that says whether it is right.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the `real2sim` command."""
    app()


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)


def _command(function: Callable[..., int]) -> Callable[..., None]:
    """A command that returns its exit code, with every error of ours shown as one message."""

    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    function.__doc__ = "\n\n".join(" ".join(p.split()) for p in paragraphs)

    @functools.wraps(function)
    def shown(*arguments: Any, **options: Any) -> None:
        from real2sim.errors import Real2SimError

        try:
            code = function(*arguments, **options)
        except Real2SimError as error:
            _show(error)
            code = _exit_code(error)
        except KeyboardInterrupt as error:
            code = 143 if str(error) == "SIGTERM" else 130
        except Exception as error:
            traceback.print_exc()
            _show(RuntimeError(f"{error}\nThis is a defect of real2sim; what is finished is kept."))
            code = DEFECT
        raise typer.Exit(code)

    return shown


def _show(error: Exception) -> None:
    from rich.markup import escape

    _console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)


def _exit_code(error: Exception) -> int:
    from real2sim.errors import BundleError
    from real2sim.flows.summary import EXIT_CODES, outcome_of

    return 2 if isinstance(error, BundleError) else EXIT_CODES[outcome_of(error)]


@contextmanager
def _watched(how_to_resume: str) -> Iterator[ConsoleObserver]:
    """An observer that draws on the terminal; Ctrl-C ends the block within seconds and says how to go on."""
    from real2sim.console import ConsoleObserver
    from real2sim.interrupt import interruptible

    observer = ConsoleObserver(_console())

    def say() -> None:
        observer.close()
        observer.console.show_cursor(True)
        observer.console.print(f"\n[yellow]Interrupted.[/] {how_to_resume}", highlight=False)

    try:
        with interruptible(say):
            yield observer
    except KeyboardInterrupt:
        say()
        raise
    finally:
        observer.close()


RESUME = (
    "Finished stages are stored, and training goes on from its last checkpoint: run the same command again to go on."
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"real2sim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


FRAMES = Annotated[int, typer.Option(help="How many photos.")]
WIDTH = Annotated[int, typer.Option(help="Width in pixels.")]
HEIGHT = Annotated[int, typer.Option(help="Height in pixels.")]
SEED = Annotated[int, typer.Option(help="Another seed is another scene; the same one gives the same bytes.")]
OBJECTS = Annotated[int, typer.Option(help="How many objects are on the table.")]


@app.command(epilog=EPILOG)
@_command
def demo(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the run.")] = Path("runs/demo"),
    frames: FRAMES = 40,
    width: WIDTH = 640,
    height: HEIGHT = 480,
    seed: SEED = 0,
    objects: OBJECTS = 5,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STAGE.OPTION=VALUE", help="Set one option of one stage. Repeatable."),
    ] = None,
    config: Annotated[str | None, typer.Option(help="YAML file of options, or the name of a packaged one.")] = None,
    store: Annotated[Path | None, typer.Option(help="Store of finished stages. Default: .real2sim beside OUT.")] = None,
) -> int:
    """Make photos of a scene whose truth is known, reconstruct it, measure the result, drop spheres into it.

    No GPU and no downloads are needed. Exit code 1: a gate failed. The table compares the result with the truth.
    """
    from real2sim.console import print_demo, print_outcome
    from real2sim.datasets.synthetic import SyntheticConfig
    from real2sim.flows.demo import demo as run_demo

    made = SyntheticConfig(seed=seed, frames=frames, width=width, height=height, objects=objects)
    request = _request(out / "synthetic" / "capture", out, settings, config, store)
    with _watched(RESUME) as observer:
        result = run_demo(made, request, observer)
    print_outcome(observer.console, result.summary, out)
    print_demo(observer.console, result, out)
    return result.summary.exit_code


@app.command(epilog=EPILOG)
@_command
def synth(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder: OUT/capture, and its truth in OUT/truth.")],
    frames: FRAMES = 40,
    width: WIDTH = 640,
    height: HEIGHT = 480,
    seed: SEED = 0,
    objects: OBJECTS = 5,
    path: Annotated[str, typer.Option(help="Path of the camera: orbits, arc, walk, rotation or flyby.")] = "orbits",
    noise: Annotated[float, typer.Option(help="Sensor noise: 1 is that of a good phone.")] = 1.0,
    blur: Annotated[float, typer.Option(help="Mean length of the smear of camera shake, in pixels.")] = 0.0,
    exposure_drift: Annotated[float, typer.Option(help="Largest relative change of exposure.")] = 0.03,
    orientation: Annotated[int, typer.Option(help="EXIF orientation of the stored photos: 1, 3, 6 or 8.")] = 1,
    video: Annotated[bool, typer.Option("--video", help="Write a video instead of photos.")] = False,
    depth: Annotated[bool, typer.Option("--depth", help="Write depth images too, as an RGB-D camera would.")] = False,
) -> int:
    """Make a capture whose truth is known: photos of a table with objects, as a person would take them."""
    import json
    import time
    from dataclasses import asdict

    from real2sim.datasets.synthetic import SyntheticConfig, write_capture

    start = time.perf_counter()
    config = SyntheticConfig(
        seed=seed,
        frames=frames,
        width=width,
        height=height,
        path=path,  # type: ignore[arg-type]  # checked, with a message of ours, by write_capture
        objects=objects,
        noise=noise,
        motion_blur_px=blur,
        exposure_drift=exposure_drift,
        orientation=orientation,
        media="video" if video else "photos",
        depth=depth,
    )
    with _watched("Nothing was kept; run the same command again.") as observer:
        observer.started("synth")
        truth = write_capture(config, out, observer)
    told = {"frames": frames, "digest": truth["digest"], "seconds": round(time.perf_counter() - start, 3)}
    (out / "summary.json").write_text(json.dumps({**told, "options": asdict(config)}, indent=1) + "\n")
    observer.console.print(f"{out / 'capture'}\n{out / 'truth'}", highlight=False, soft_wrap=True)
    return 0


@app.command(epilog=EPILOG)
@_command
def reconstruct(
    capture: Annotated[Path, typer.Argument(help="A folder of photos, videos or RGB-D, or one file.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder for report, summary and bundle.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STAGE.OPTION=VALUE", help="Set one option of one stage. Repeatable."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="YAML of stage: {option: value}, or the name of a packaged one (quick).")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Store of finished stages. Default: .real2sim beside RUN.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="GATE", help="Let this gate fail; the bundle records it. Repeatable."),
    ] = None,
    known_length: Annotated[
        list[str] | None,
        typer.Option(
            "--known-length",
            metavar='"METRES IMAGE x,y x,y"',
            help="A length that you measured, and the pixels of its ends in two or more photos. Repeatable.",
        ),
    ] = None,
    marker_size: Annotated[float | None, typer.Option(help="Side of the scene's ArUco marker, in metres.")] = None,
    poses: Annotated[
        Path | None, typer.Option(help="File of known camera poses to use. Such a run is not scored against them.")
    ] = None,
    prefect: Annotated[bool, typer.Option("--prefect", help="Run as a Prefect flow, one task per stage.")] = False,
    budget: Annotated[
        str | None, typer.Option(help="About how long it may take, such as 10min: fewer steps, smaller features.")
    ] = None,
) -> int:
    """Turn a capture into a bundle, or say why it cannot be one.

    Each gate is measured on evidence that the fit never saw. One that fails ends the run with exit code 1, after the
    stage that measured it: RUN/report.html and RUN/summary.json say why, and RUN/bundle is there only when every gate
    passed or is named in --allow. What is finished is stored by content: the same command runs only what changed.
    """
    from real2sim.console import print_outcome
    from real2sim.flows.graph import SCENE

    request = _request(capture, out, settings, config, store, allow, known_length, marker_size, poses, budget)
    with _watched(RESUME) as observer:
        if prefect:
            summary = _prefect_runner()(request, SCENE, observer)
        else:
            from real2sim.flows.reconstruct import reconstruct as run_scene

            summary = run_scene(request, SCENE, observer)
    print_outcome(observer.console, summary, out)
    return summary.exit_code


def _prefect_runner() -> Callable[..., Any]:
    from real2sim.errors import BackendError

    try:
        from real2sim.flows.prefect_scene import reconstruct_as_flow
    except ModuleNotFoundError as error:
        raise BackendError(f"--prefect: {error}. Install Prefect with `pip install 'real2sim[prefect]'`.") from error
    return reconstruct_as_flow


def _request(
    capture: Path,
    out: Path,
    settings: list[str] | None = None,
    config: str | None = None,
    store: Path | None = None,
    allow: list[str] | None = None,
    known_length: list[str] | None = None,
    marker_size: float | None = None,
    poses: Path | None = None,
    budget: str | None = None,
) -> Any:
    """The request of what was typed, with absolute paths."""
    from real2sim.flows.budget import settings_for
    from real2sim.flows.config import Setting, find_config, parse_setting
    from real2sim.flows.rundir import Request

    chosen = settings_for(budget) if budget else []
    chosen += [parse_setting(text) for text in settings or ()]
    if known_length:
        chosen.append(Setting("ingest", "known_length", ";".join(known_length), "--known-length"))
    if marker_size is not None:
        chosen.append(Setting("ingest", "marker_size_m", marker_size, "--marker-size"))
    return Request(
        capture=capture.absolute(),
        run=out.absolute(),
        store=(store or out.absolute().parent / ".real2sim").absolute(),
        config=find_config(config).absolute() if config else None,
        settings=tuple(chosen),
        allow=tuple(allow or ()),
        poses=poses.absolute() if poses else None,
    )


@app.command(epilog=EPILOG)
@_command
def status(
    run: Annotated[Path, typer.Argument(help="Folder that was given to `reconstruct --out`.")],
    why: Annotated[bool, typer.Option("--why", help="Name the file, option or version behind each state.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STAGE.OPTION=VALUE", help="Ask what would run again with this. Repeatable."),
    ] = None,
) -> int:
    """Say for each stage of a run whether it is fresh, stale, running, failed or missing. Nothing is computed."""
    from dataclasses import replace

    from real2sim.console import print_status
    from real2sim.flows.config import parse_setting
    from real2sim.flows.graph import SCENE
    from real2sim.flows.rundir import Request
    from real2sim.flows.status import status as status_of

    request = Request.read(run)
    request = replace(request, settings=(*request.settings, *(parse_setting(text) for text in settings or ())))
    print_status(_console(), status_of(request, SCENE), why)
    return 0


@app.command(epilog=EPILOG)
@_command
def check(bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")]) -> int:
    """Verify a bundle, read-only: every hash, then the gates that can be repeated from the bundle alone.

    Exit code 0: good. 1: a gate failed that the bundle does not record as allowed. 2: not a bundle, or changed.
    """
    from real2sim.console import print_gates
    from real2sim.sim.bundle import read_bundle
    from real2sim.stages import verify

    with _watched("Nothing was written.") as observer:
        observer.started("check")
        allowed = read_bundle(bundle).data["allowed"]
        gates = verify.check(bundle, observer)
    return 0 if print_gates(observer.console, gates, allowed) else 1


@app.command(epilog=EPILOG)
@_command
def sim(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The film to write (mp4); summary.json goes beside it.")],
    drop: Annotated[int, typer.Option(help="How many spheres to drop.")] = 50,
    seconds: Annotated[float, typer.Option(help="Length of the film, in seconds.")] = 4.0,
    width: Annotated[int, typer.Option(help="Width in pixels.")] = 640,
    height: Annotated[int, typer.Option(help="Height in pixels.")] = 480,
    seed: Annotated[int, typer.Option(help="Where the spheres start.")] = 0,
    engine: Annotated[str, typer.Option(help="What steps it: real2sim or mujoco; the other is compared.")] = "real2sim",
) -> int:
    """Drop coloured spheres into a bundle and film it, splat and spheres in their depth order."""
    from real2sim.errors import UsageError
    from real2sim.sim.drop import AGREEMENT, drop_video
    from real2sim.sim.scene import engine_named

    folder = out.absolute().parent
    if (folder / "run.json").exists():
        raise UsageError(
            f"--out {out}: this folder is a run, and the film's summary.json would replace the run's."
            f" Give a folder of its own, such as {out.parent / 'film' / out.name}."
        )
    if any((above / "bundle.json").exists() for above in (folder, *folder.parents)):
        raise UsageError(f"--out {out}: this folder is a bundle, which must stay as it was made. Give another folder.")
    with _watched("The film is not finished; run the same command again.") as observer:
        observer.started("sim")
        told = drop_video(
            bundle,
            drop,
            out,
            seconds=seconds,
            width=width,
            height=height,
            seed=seed,
            engine=engine_named(engine),
            progress=observer,
        )
    observer.console.print(
        f"{out}: {told.spheres} spheres, {told.on_support} rest on the support, {told.on_objects} on objects,"
        f" {told.fell_off} fell off, {told.moving} still move.",
        highlight=False,
        soft_wrap=True,
    )
    apart = f"{told.engines_apart_m * 1000:.2f} mm apart in height"
    verdict = (
        "The engines agree" if told.engines_agree else f"The engines DISAGREE by more than {AGREEMENT * 1000:g} mm"
    )
    observer.console.print(f"{verdict}: spheres that rest on the support lie at most {apart}.", highlight=False)
    return 0


@app.command(epilog=EPILOG)
@_command
def view(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    drop: Annotated[int, typer.Option(help="How many spheres to drop, live.")] = 0,
    host: Annotated[str, typer.Option(help="Address to serve at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to serve at.")] = 8080,
) -> int:
    """Look at a bundle in the browser: Gaussians, mesh, colliders, cameras, support, and physics running live."""
    from real2sim.errors import UsageError
    from real2sim.sim.viewer import open_viewer

    if drop < 0:
        raise UsageError(f"--drop {drop}: a number of spheres, 0 or more.")
    with _watched("The viewer has ended.") as observer:
        viewer = open_viewer(bundle, drop=drop, host=host, port=port)
        observer.console.print(f"http://{host}:{port}  (Ctrl-C ends it)", highlight=False)
        viewer.run()
    return 0


mjcf_app = typer.Typer(help="What MJCF files use.", no_args_is_help=True)
app.add_typer(mjcf_app, name="mjcf")


@mjcf_app.command("check", epilog=EPILOG)
@_command
def mjcf_check(files: Annotated[list[Path], typer.Argument(help="MJCF files.")]) -> int:
    """Say what MJCF files use, which options the physics core replaces by its own, and what it would refuse.

    Exit code 0: it takes every file. 1: it refuses at least one.
    """
    from real2sim.errors import UsageError
    from real2sim.sim.physics.check import report

    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UsageError(f"{missing[0]} is no file. Give paths of MJCF files (.xml).")
    results = [report(str(file)) for file in files]
    for text, _ in results:
        typer.echo(text)
    return 0 if all(taken for _, taken in results) else 1


add_service_commands(app, _command, EPILOG)

if __name__ == "__main__":
    sys.exit(app())
