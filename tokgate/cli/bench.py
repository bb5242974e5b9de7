"""``tokgate bench URL``: the measuring client by itself, on any running server."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokgate.cli.bench_figures import document, show
from tokgate.cli.bench_load import (
    arrival_of,
    cpus,
    from_file,
    from_options,
    headers,
    known_route,
    prompts_of,
    refuse_beside_prompts,
    refuse_beside_workload,
    service_level,
    stamps_of,
)
from tokgate.cli.bench_run import Heed, Run, run
from tokgate.cli.interruption import INTERRUPTED
from tokgate.errors import LoadFault, ResultsUnwritable
from tokgate.load.discovery import discover, fits
from tokgate.load.endings import Interrupted
from tokgate.load.prompts import build
from tokgate.load.routes import Protocol, resolve
from tokgate.load.sample import check_writable, write_json

app = typer.Typer(add_completion=False)


@app.command()
def bench(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="base URL of the server, http://HOST:PORT")],
    workload: Annotated[
        str | None,
        typer.Option(help="FILE:NAME of a workloads.yaml, in place of the options down to --arrival"),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="requests in flight at once")] = 1,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="requests to send; default 4 per concurrent one, or all of a trace"),
    ] = None,
    output_tokens: Annotated[int, typer.Option(min=2, help="tokens asked of each request")] = 128,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="length of generated prompts, token ids")] = 64,
    shared_prefix: Annotated[
        float, typer.Option(min=0, max=1, help="share of the prompt that all have in common")
    ] = 0,
    prompts: Annotated[
        str | None, typer.Option(help="tokens, text (shipped prompts), or a JSONL trace; chat: text")
    ] = None,
    seed: Annotated[int, typer.Option(help="of prompts and arrivals")] = 0,
    rate: Annotated[float | None, typer.Option(help="open loop: requests a second")] = None,
    arrival: Annotated[
        str | None, typer.Option(help="open loop: poisson (default), constant, or trace (its at_s)")
    ] = None,
    route: Annotated[
        str | None, typer.Option(help="generate, completions or chat; found out if left out")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="requests before, not counted; default one per concurrent one")
    ] = None,
    model: Annotated[str | None, typer.Option(help="model name on the OpenAI routes")] = None,
    header: Annotated[list[str] | None, typer.Option(help="'Name: value', may be repeated")] = None,
    slo_ttft_s: Annotated[float | None, typer.Option(help="goodput: limit of TTFT")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="goodput: limit of TPOT")] = None,
    first_token_s: Annotated[float, typer.Option(help="deadline from sending to the first token")] = 60,
    gap_s: Annotated[float, typer.Option(help="deadline between tokens of a stream")] = 30,
    request_s: Annotated[float, typer.Option(help="deadline of a whole request")] = 600,
    stamps: Annotated[
        str, typer.Option(help="who dates arrivals: kernel, or tap (packets; needs CAP_NET_RAW)")
    ] = "kernel",
    pin_cpus: Annotated[str | None, typer.Option(help="CPUs for the client, such as 14,15")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write everything measured here")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar")] = False,
) -> None:
    """Measure a running SGLang or OpenAI-compatible server.

    Exit code: 0 measured; 1 requests failed, or no server answers, or it stalled or went away; 2 usage; 3 measured,
    but void; 130 interrupted. What was measured of a run that was cut short is shown and written, as void.
    """
    from tokgate.load.client import Deadlines

    protocol = Protocol(headers=headers(header or []))
    # A drain is as long as the last request at most, which has a deadline of its own.
    deadlines = Deadlines(first_token_s=first_token_s, gap_s=gap_s, request_s=request_s, drain_s=request_s)
    slo, pins, dated_by = service_level(slo_ttft_s, slo_tpot_ms), cpus(pin_cpus), stamps_of(stamps)
    spoken = known_route(route)
    if workload is not None:
        refuse_beside_workload(context)
    target = resolve(url)
    found = discover(target, route=spoken, model=model, headers=protocol.headers)
    if workload is not None:
        plan = from_file(workload, spoken)
    else:
        plan = from_options(
            found.route,
            concurrency=concurrency,
            requests=requests,
            output_tokens=output_tokens,
            prompts=prompts_of(prompts, found.route, prompt_tokens, shared_prefix, seed),
            arrival=arrival_of(arrival, rate, seed),
        )
        refuse_beside_prompts(context, plan.prompts)
    fits(plan, found)
    chosen = build(plan)
    if json_file is not None:
        check_writable(json_file)
    with Heed() as stop:
        ran = run(
            url,
            plan,
            chosen,
            deadlines=deadlines,
            protocol=replace(protocol, model=found.model),
            slo=slo,
            pins=pins,
            stamps=dated_by,
            warmup=plan.concurrency if warmup is None else warmup,
            quiet=quiet,
            stop=stop,
        )
        unwritten = _write(json_file, document(url, found.server, ran))
    _shown(url, found.server, ran)
    if ran.cut is not None:
        kept = str(unwritten) if unwritten else f"kept, as void: {json_file}" if json_file else ""
        fault = LoadFault(ran.cut.headline, [*ran.cut.details, *filter(None, [kept])])
        if not isinstance(ran.cut, Interrupted):
            raise fault
        typer.echo(f"tokgate bench: {fault}", err=True)
        raise typer.Exit(INTERRUPTED)
    if unwritten is not None:
        raise unwritten
    good = sum(r.outcome in ("ok", "short") for r in ran.measured.requests)
    if not good:
        raise LoadFault("no request was answered", [v.message for v in ran.measured.void])
    raise typer.Exit(1 if good < len(ran.measured.requests) else 3 if ran.measured.void else 0)


def _write(path: Path | None, facts: dict[str, object]) -> ResultsUnwritable | None:
    """Write the file; what stands in the way is told after the figures were shown."""
    try:
        if path is not None:
            write_json(path, facts)
    except ResultsUnwritable as fault:
        return fault
    return None


def _shown(url: str, server: str, ran: Run) -> None:
    try:
        show(url, server, ran)
        sys.stdout.flush()
    except BrokenPipeError:
        # `tokgate bench ... | head`: what is not read is no failure of the measurement.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
