# SPDX-License-Identifier: Apache-2.0
"""Commands for whoever runs real2sim day after day; what a command needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

PLACE = Annotated[Path, typer.Argument(help="A store (.real2sim), a run, or the folder that holds the store.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
OUT = Annotated[Path, typer.Argument(metavar="OUT", help="The folder `out` of the dataset's YAML.")]
WHERE = Annotated[str, typer.Option(help='SQL condition on the index, such as "psnr_heldout > 25 AND commercial".')]
HOUR_S = 3600.0


def add_service_commands(app: typer.Typer, command: Callable[..., Any], epilog: str) -> None:
    """Put these commands into the command line; command: what makes errors into exit codes."""
    for function in (doctor, preflight):
        app.command(epilog=epilog)(command(function))
    store = typer.Typer(help="Care of a store: what it takes, whether it is whole, what may go.", no_args_is_help=True)
    for name, function in _named(du=du, verify=verify, gc=gc):
        store.command(name, epilog=epilog)(command(function))
    app.add_typer(store, name="store")
    dataset = typer.Typer(help="Many captures: build, look through, hand on.", no_args_is_help=True)
    for name, function in _named(build=dataset_build, report=dataset_report, export=dataset_export):
        dataset.command(name, epilog=epilog)(command(function))
    app.add_typer(dataset, name="dataset")


def _named(**functions: Callable[..., int]) -> list[tuple[str, Callable[..., int]]]:
    return list(functions.items())


def doctor(
    place: Annotated[Path, typer.Argument(help="Folder that runs will be written to.")] = Path("."),
    as_json: AS_JSON = False,
) -> int:
    """Try everything that the pipeline uses on this machine, and say what to do about each lack.

    Exit code 0: all that is needed works. 1: something needed is absent or broken.
    """
    import json

    from rich.console import Console
    from rich.markup import escape

    from real2sim.flows.doctor import diagnose

    console, found = Console(), []
    colours = {"works": "green", "absent": "yellow", "broken": "red"}
    for finding in diagnose(place.absolute()):
        found.append(finding)
        if not as_json:
            state = f"[{colours[finding.state]}]{finding.state:<7}[/]"
            console.print(f"{finding.name:<19} {state} [dim]{escape(finding.what)}[/]", highlight=False, soft_wrap=True)
            if finding.advice:
                console.print(f"{'':27} {escape(finding.advice)}", highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([f.to_json() for f in found], indent=1))
    return 0 if all(f.good for f in found) else 1


def preflight(
    capture: Annotated[Path, typer.Argument(help="A folder of photos or videos, or one video.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Keep the thumbnails and the look here.")] = None,
    as_json: AS_JSON = False,
) -> int:
    """Look at a capture before any long work: sharpness, light, texture, overlap, parallax, and what to do.

    Exit code 0: nothing speaks against it. 1: something is bad enough that a run will probably be refused.
    """
    import json
    import tempfile

    from rich.console import Console
    from rich.markup import escape

    from real2sim.flows.predict import predict
    from real2sim.stages import ingest, sfm
    from real2sim.stages.contract import Progress
    from real2sim.stages.preflight import look
    from real2sim.stages.sfm_database import threads

    with tempfile.TemporaryDirectory(prefix="real2sim-look-") as work:
        place = out or Path(work)
        found = look(capture, ingest.Config(), place, Progress())
        frames = json.loads((place / "ingest" / "frames.json").read_text())["frames"]
    need = predict(frames, sfm.Config().max_image_size, sfm.Config().max_features, threads())
    if as_json:
        strip = found.strip if out else ""
        typer.echo(json.dumps({**found.to_json(), "strip": strip, "memory": need.memory, "disk": need.disk}, indent=1))
        return 0 if found.hopeful else 1
    console, colours = Console(), {"good": "green", "look": "yellow", "bad": "red"}
    for remark in found.remarks:
        line = f"[{colours[remark.level]}]{remark.level:<5}[/] {remark.about:<22} {escape(remark.seen)}"
        console.print(line, highlight=False, soft_wrap=True)
        if remark.advice:
            console.print(f"{'':28} [bold]{escape(remark.advice)}[/]", highlight=False, soft_wrap=True)
    console.print(f"{found.frames} frames; {need.describe()}", highlight=False, soft_wrap=True)
    if out:
        console.print(found.strip, highlight=False, soft_wrap=True)
    return 0 if found.hopeful else 1


def du(place: PLACE = Path("."), as_json: AS_JSON = False) -> int:
    """What each stage takes on the disk, and how much of it no run refers to any more."""
    import json

    from rich.console import Console
    from rich.table import Table

    from real2sim.flows.store_care import find_store, usage

    rows = usage(find_store(place))
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], indent=1))
        return 0
    table = Table("stage", "artifacts", "MB", "unused", "MB", "checkpoints MB", box=None, pad_edge=False)
    for r in rows:
        cells = (r.artifacts, r.size / 1e6, r.unused, r.unused_size / 1e6, r.scratch_size / 1e6)
        table.add_row(r.stage, *(f"{c:.1f}" if isinstance(c, float) else str(c) for c in cells))
    Console().print(table)
    return 0


def verify(place: PLACE = Path(".")) -> int:
    """Hash every artifact anew. Exit code 1: one is damaged; the next run that needs it builds it again."""
    from rich.console import Console

    from real2sim.flows.store_care import artifacts, find_store
    from real2sim.flows.store_care import verify as verify_store

    store, console = find_store(place), Console()
    with console.status("hashing") as status:
        damage = verify_store(store, lambda done, total, stage: status.update(f"{done}/{total} {stage}"))
    for line in damage:
        console.print(f"[red]damaged[/] {line}", highlight=False, soft_wrap=True)
    console.print(f"{len(list(artifacts(store)))} artifacts, {len(damage)} damaged", highlight=False)
    return 1 if damage else 0


def gc(
    place: PLACE = Path("."),
    min_age_hours: Annotated[float, typer.Option(help="Keep what is younger: a run may be about to name it.")] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
) -> int:
    """Remove artifacts that no run refers to, checkpoints that nobody goes on from, and what dead processes left.

    A run refers to what it last had of each stage, as long as its folder is there.
    """
    from rich.console import Console

    from real2sim.flows.store_care import collect, find_store

    done, console = collect(find_store(place), min_age_s=min_age_hours * HOUR_S, dry_run=dry_run), Console()
    for path, size in done.removed:
        console.print(f"{size / 1e6:9.1f} MB  {path}", highlight=False, soft_wrap=True)
    would = "would go" if dry_run else "removed"
    console.print(
        f"{len(done.removed)} folders, {done.size / 1e6:.1f} MB {would}; {done.kept_young} unused ones are younger than"
        f" {min_age_hours:g} h; {len(done.forgotten_runs)} runs whose folder is gone are forgotten.",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def dataset_build(
    config: Annotated[Path, typer.Argument(help="YAML of the dataset; configs/dataset/example.yaml is one.")],
    prefect: Annotated[bool, typer.Option("--prefect", help="Run as a Prefect flow, a sub-flow a scene.")] = False,
) -> int:
    """Bring every capture of a dataset to a bundle or a named refusal; a bad one never stops the others.

    What ended with the same capture, options and program before is not run again. Exit code 0: every scene is a bundle or
    refused by name. 1: all, or more than max_refused, were refused. 75: some ran short of time, memory or disk.
    """
    from rich.console import Console
    from rich.markup import escape

    from real2sim.flows.dataset import Ended, build, whole_exit_code
    from real2sim.flows.dataset_plan import read_dataset
    from real2sim.interrupt import interruptible

    dataset, console = read_dataset(config), Console()
    if prefect:
        return _prefect_dataset(config)

    def report(row: Ended, done: int, total: int) -> None:
        mark = "[green]✓[/]" if row.good else "[red]✗[/]"
        how = "as before" if row.reused else f"{row.seconds:.0f} s"
        reason = "" if row.good else f"  [dim]{escape(row.reason.splitlines()[0] if row.reason else '')}[/]"
        line = f"{mark} {done}/{total} {escape(row.name):<24} {row.outcome:<10} {how:>9}{reason}"
        console.print(line, highlight=False, soft_wrap=True)

    with interruptible(lambda: console.print("\n[yellow]Interrupted.[/] Run the same command again to go on.")):
        rows = build(dataset, report)
    good = sum(row.good for row in rows)
    console.print(
        f"{good} of {len(rows)} scenes are bundles. {dataset.out / 'report.html'}", highlight=False, soft_wrap=True
    )
    return whole_exit_code(dataset, rows)


def _prefect_dataset(config: Path) -> int:
    from real2sim.errors import BackendError

    try:
        from real2sim.flows.prefect_dataset import run_dataset_flow
    except ModuleNotFoundError as error:
        raise BackendError(f"--prefect: {error}. Install Prefect with `pip install 'real2sim[prefect]'`.") from error
    return run_dataset_flow(config)


def dataset_report(out: OUT, where: WHERE = "") -> int:
    """Write OUT/report.html again, of all scenes or of those that a condition chooses, and list them."""
    from rich.console import Console
    from rich.table import Table

    from real2sim.datasets.index import read_index
    from real2sim.flows.dataset_report import write_dataset_report

    table = Table("scene", "outcome", "frames", "dB", "MB", "failed", box=None, pad_edge=False)
    for row in read_index(out, where):
        psnr, size = (f"{row[k]:.1f}" if row[k] is not None else "" for k in ("psnr_heldout", "megabytes"))
        frames = "" if row["frames"] is None else f"{row['registered'] or 0}/{row['frames']}"
        table.add_row(row["name"], row["outcome"], frames, psnr, size, ", ".join(row["failed_gates"]))
    console = Console()
    console.print(table)
    console.print(str(write_dataset_report(out, where)), highlight=False, soft_wrap=True)
    return 0


def dataset_export(out: OUT, where: WHERE = "") -> int:
    """Print the good scenes as JSON lines: bundle, digest, measures, licences."""
    from real2sim.datasets.index import manifest

    for line in manifest(out, where):
        typer.echo(line)
    return 0
