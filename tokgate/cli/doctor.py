"""``tokgate doctor``: is this host fit to measure on, and what mends it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tokgate.host import fitness

app = typer.Typer(add_completion=False)

WORDS = {"ok": "ok", "absent": "absent", "warn": "warn", "unfit": "UNFIT"}


@app.command()
def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="print findings as JSON")] = False,
    results: Annotated[Path, typer.Option(help="folder in which results will be written")] = Path("results"),
    gpus: Annotated[str, typer.Option(help="GPU indices to look at, as in 0,1; default: all")] = "",
) -> None:
    """Examine the host: GPUs, tracer, clock, CPU, ports, disk, limits, leftovers.

    Exit code 0 when a gate may measure here (warnings are printed), 3 when it must not.
    """
    try:
        indices = [int(item) for item in gpus.split(",") if item.strip()] if gpus else None
    except ValueError:
        raise typer.BadParameter(
            f"'{gpus}' is no list of GPU indices (as in 0,1)", param_hint="--gpus"
        ) from None
    findings = fitness.examine(results, gpus=indices)
    worst = fitness.worst(findings)
    if json_output:
        print(json.dumps({"worst": worst, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{WORDS[finding.level]:<6} {finding.name:<{width}}  {finding.seen}")
            if finding.mend and finding.level in {"warn", "unfit"}:
                print(f"{'':<6} {'':<{width}}  mend: {finding.mend}")
        unfit = [finding.name for finding in findings if finding.level == "unfit"]
        print(f"UNFIT: {', '.join(unfit)}" if unfit else "fit to measure")
    raise typer.Exit(3 if worst == "unfit" else 0)
