"""``tokgate bisect``: which SGLang version, or commit, made it slow, or made it hang?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokgate.cli.interruption import terminable
from tokgate.cli.resuming import more_blocks, names, only_with_resume, percent, share
from tokgate.errors import UsageFault

OF_THIS_CALL = frozenset({"resume", "results", "blocks", "budget_minutes", "dry_run", "wait_gpu_s"})
"""Options that may differ when a bisection is taken up; the others say what is measured."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def bisect(
    context: typer.Context,
    good: Annotated[str | None, typer.Option(help="a version or commit that is well")] = None,
    bad: Annotated[str | None, typer.Option(help="a later one that is not")] = None,
    metric: Annotated[
        str, typer.Option(help="a gated metric of workloads, or failure: a hang or a crash")
    ] = "output_tok_s",
    profile: Annotated[str, typer.Option(help="which is judged")] = "baseline",
    workload: Annotated[str, typer.Option(help="which is run")] = "chat-bs1",
    versions: Annotated[
        str | None, typer.Option(help="A,B; the package index's, or those of the engine files")
    ] = None,
    engines: Annotated[str | None, typer.Option(help="engine files: FOLDER/{version}.yaml")] = None,
    commits: Annotated[
        Path | None, typer.Option(help="local clone: go on between the releases found")
    ] = None,
    launches: Annotated[int, typer.Option(min=1, help="for failure: so many good launches are good")] = 3,
    limit_percent: Annotated[
        float | None, typer.Option(help="the change that the ends show; the gate's limit")
    ] = None,
    model: Annotated[str | None, typer.Option(help="a model of profiles.yaml, or a folder")] = None,
    blocks: Annotated[int, typer.Option(min=3, help="blocks a step at most")] = 40,
    runs: Annotated[int, typer.Option(min=1, help="runs of the workload on each launch")] = 4,
    budget_minutes: Annotated[float | None, typer.Option(min=0, help="GPU minutes of this call")] = None,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="one server at a time, where memory is short")
    ] = False,
    mem_fraction: Annotated[float | None, typer.Option(help="mem_fraction of the profile")] = None,
    max_total_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV cache of every server, tokens")
    ] = None,
    calibration: Annotated[list[Path] | None, typer.Option(help="file or folder; may be repeated")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=(1 << 20) - 1, help="of the orders; drawn")] = None,
    resume: Annotated[
        str | None, typer.Option(help="go on with this one: its name, folder, or latest")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print versions and steps; start nothing")
    ] = False,
    config_folder: Annotated[Path, typer.Option(help="where the three YAML files stand")] = Path(
        "perf_tests"
    ),
    results: Annotated[Path, typer.Option(help="where bisections are stored")] = Path("results"),
    baselines: Annotated[Path, typer.Option(help="stored baselines and calibrations")] = Path("baselines"),
    engine_flag: Annotated[
        list[str] | None, typer.Option(help="passed to every server; may be repeated")
    ] = None,
    wait_gpu_s: Annotated[float, typer.Option(min=0, help="queue so long for a GPU in use")] = 0.0,
) -> None:
    """Find the version that made it slow, or made it hang: ends verified, then halved.

    Every step is the sequential test against the good end, which is measured again in the same blocks. Exit codes:
    0 found, 2 usage or configuration, 3 not found: the ends do not differ, or the budget is spent.
    """
    from tokgate.bump.bisect_log import answer
    from tokgate.bump.bisect_run import PREFIX, BisectOptions, bisect, read_options, rehearse
    from tokgate.bump.candidates import EngineFiles
    from tokgate.bump.options import BumpOptions, new_seed
    from tokgate.bump.run import find_folder, new_folder

    share("--mem-fraction", mem_fraction)
    percent("--limit-percent", limit_percent)
    if resume is not None:
        only_with_resume(context, OF_THIS_CALL)
        folder = find_folder(results, resume, PREFIX)
        options = read_options(folder)
        allowed = more_blocks(context, blocks, options.bump.blocks)
        options = replace(options, bump=replace(options.bump, blocks=allowed))
    else:
        if good is None or bad is None:
            raise UsageFault("a bisection needs --good and --bad, or --resume")
        folder = new_folder(results, PREFIX)
        if engines is not None:
            EngineFiles(engines)
        places = [engines.replace("{version}", end) if engines else end for end in (good, bad)]
        options = BisectOptions(
            good=good,
            bad=bad,
            metric=metric,
            versions=names(versions, "--versions"),
            engines=engines,
            commits=None if commits is None else str(commits),
            launches=launches,
            limit_percent=limit_percent,
            bump=BumpOptions(
                old=places[0],
                new=places[1],
                folder=str(config_folder),
                results=str(results),
                baselines=str(baselines),
                profiles=(profile,),
                workloads=(workload,),
                model=model,
                runs=runs,
                blocks=blocks,
                seed=new_seed() if seed is None else seed,
                pairing="apart" if one_at_a_time else "pair",
                mem_fraction=mem_fraction,
                max_total_tokens=max_total_tokens,
                parity=(),
                calibrations=tuple(map(str, calibration or ())),
                engine_flags=tuple(engine_flag or ()),
            ),
        )
    if dry_run:
        typer.echo("\n".join(rehearse(options)))
        return
    with terminable("bisect", folder):
        done = bisect(options, folder, minutes=budget_minutes, wait_gpu_s=wait_gpu_s, say=typer.echo)
    for result in done.results:
        typer.echo(answer(result))
    typer.echo(f"log: {done.folder / 'bisect.md'}")
    raise typer.Exit(0 if done.complete else 3)
