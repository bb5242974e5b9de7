"""``tokgate bump``: is a new SGLang as fast as the old one, on this GPU, today?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokgate.cli.interruption import terminable
from tokgate.cli.resuming import more_blocks, names, only_with_resume, share
from tokgate.errors import UsageFault

OF_THIS_CALL = frozenset(
    {
        "resume",
        "results",
        "blocks",
        "budget_minutes",
        "dry_run",
        "assume_scatter_percent",
        "wait_gpu_s",
        "strict_inconclusive",
    }
)
"""Options that may differ when a bump is taken up; the others say what is measured."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def bump(
    context: typer.Context,
    old: Annotated[
        str | None, typer.Option("--from", help="old version, or engine; else the base branch's pin")
    ] = None,
    new: Annotated[
        str | None, typer.Option("--to", help="new version, or engine; else ci/sglang.pin here")
    ] = None,
    from_engine: Annotated[str | None, typer.Option(help="engine file or name of the old version")] = None,
    to_engine: Annotated[str | None, typer.Option(help="engine file or name of the new version")] = None,
    base: Annotated[str | None, typer.Option(help="branch whose pin is the old version")] = None,
    profiles: Annotated[str | None, typer.Option(help="A,B; all that are not on demand")] = None,
    workloads: Annotated[str | None, typer.Option(help="A,B; those of the engine's kind")] = None,
    metrics: Annotated[str | None, typer.Option(help="A,B; all of gate.yaml")] = None,
    model: Annotated[str | None, typer.Option(help="a model of profiles.yaml, or a folder")] = None,
    blocks: Annotated[int, typer.Option(min=3, help="blocks a profile at most")] = 40,
    runs: Annotated[int, typer.Option(min=1, help="runs of a workload on each launch")] = 4,
    budget_minutes: Annotated[float | None, typer.Option(min=0, help="GPU minutes of this call")] = None,
    all_at_once: Annotated[
        bool, typer.Option("--all-at-once", help="both versions of all profiles are up at once")
    ] = False,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="one server at a time, where memory is short")
    ] = False,
    mem_fraction: Annotated[float | None, typer.Option(help="mem_fraction of every profile")] = None,
    max_total_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV cache of every server, tokens")
    ] = None,
    parity: Annotated[
        str | None, typer.Option(help="cases of greedy parity, A,B or none; all but many")
    ] = None,
    calibration: Annotated[list[Path] | None, typer.Option(help="file or folder; may be repeated")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=(1 << 20) - 1, help="of the orders; drawn")] = None,
    resume: Annotated[
        str | None, typer.Option(help="go on with this bump: its name, folder, or latest")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print plan, cost and power; start nothing")
    ] = False,
    host_class: Annotated[str | None, typer.Option(help="plan for this host class (--dry-run)")] = None,
    assume_scatter_percent: Annotated[
        float | None,
        typer.Option(min=0.01, max=10_000, help="scatter of a block without calibration (--dry-run)"),
    ] = None,
    config_folder: Annotated[Path, typer.Option(help="where the three YAML files stand")] = Path(
        "perf_tests"
    ),
    results: Annotated[Path, typer.Option(help="where bumps are stored")] = Path("results"),
    baselines: Annotated[Path, typer.Option(help="stored baselines and calibrations")] = Path("baselines"),
    engine_flag: Annotated[
        list[str] | None, typer.Option(help="passed to every server; may be repeated")
    ] = None,
    wait_gpu_s: Annotated[float, typer.Option(min=0, help="queue so long for a GPU in use")] = 0.0,
    strict_inconclusive: Annotated[
        bool, typer.Option("--strict-inconclusive", help="an INCONCLUSIVE verdict fails")
    ] = False,
) -> None:
    """Compare two SGLang versions, or any two engines, on the same GPU: blocks of both, runs interleaved.

    Measures until every verdict is reached or the budget is spent. Exit codes: 0 green, 1 a failed verdict,
    2 usage or configuration, 3 environment or inconclusive.
    """
    from tokgate.bump.engines import planned_engine
    from tokgate.bump.options import USUAL_PARITY, BumpOptions, new_seed, prepare, read_options
    from tokgate.bump.rehearsal import rehearse
    from tokgate.bump.run import find_folder, measure, new_folder, with_calibrations

    if all_at_once and one_at_a_time:
        raise UsageFault("--all-at-once and --one-at-a-time exclude each other")
    for asked, engine, word in ((old, from_engine, "from"), (new, to_engine, "to")):
        if asked and engine:
            raise UsageFault(f"--{word} and --{word}-engine name the same thing: give one")
    share("--mem-fraction", mem_fraction)
    if resume is not None:
        only_with_resume(context, OF_THIS_CALL)
        folder = find_folder(results, resume)
        options = read_options(folder)
        options = replace(options, blocks=more_blocks(context, blocks, options.blocks))
    else:
        folder = new_folder(results)
        named = _versions(old or from_engine, new or to_engine, base, config_folder)
        options = BumpOptions(
            old=named[0],
            new=named[1],
            folder=str(config_folder),
            results=str(results),
            baselines=str(baselines),
            profiles=names(profiles, "--profiles"),
            workloads=names(workloads, "--workloads"),
            metrics=names(metrics, "--metrics"),
            model=model,
            runs=runs,
            blocks=blocks,
            seed=new_seed() if seed is None else seed,
            pairing="all" if all_at_once else "apart" if one_at_a_time else "pair",
            mem_fraction=mem_fraction,
            max_total_tokens=max_total_tokens,
            parity=USUAL_PARITY if parity is None else () if parity == "none" else names(parity, "--parity"),
            calibrations=tuple(map(str, calibration or ())),
            engine_flags=tuple(engine_flag or ()),
            host_class=host_class,
        )
    if dry_run:
        prepared, remarks = with_calibrations(
            options, prepare(options, (planned_engine(options.old), planned_engine(options.new)))
        )
        scatter = None if assume_scatter_percent is None else assume_scatter_percent / 100
        lines = rehearse(
            options, prepared, minutes=budget_minutes, assumed_scatter=scatter, folder=str(folder)
        )
        typer.echo("\n".join([*lines, *remarks]))
        return
    with terminable("bump", folder):
        done = measure(options, folder, minutes=budget_minutes, wait_gpu_s=wait_gpu_s, say=typer.echo)
    typer.echo((done.folder / "report.md").read_text(encoding="utf-8"))
    typer.echo(f"results: {done.folder}")
    raise typer.Exit(done.report.exit_code(strict_inconclusive=strict_inconclusive))


def _versions(old: str | None, new: str | None, base: str | None, config_folder: Path) -> tuple[str, str]:
    """What is compared; what is not named comes from the pins."""
    from tokgate.bump.pins import PIN, pin_here, pin_of_base

    root = config_folder.resolve().parent
    named = new is not None
    if new is None:
        new = pin_here(root)
    if old is None:
        old, branch = pin_of_base(root, base)
        if new == old and not named:
            raise UsageFault(
                f"{PIN} is {new} here and on {branch}: nothing to compare",
                [f"a version against itself, as a control: --from {new} --to {new}"],
            )
        typer.echo(f"--from {old}: the pin of {branch}; --to {new}")
    return old, new
