"""``tokgate bench URL``: the measuring client by itself, on any running server."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from tokgate import __version__
from tokgate.config.workloads import Arrival, Prompts, Route, Workload, load_workloads
from tokgate.errors import LoadFault, UsageFault
from tokgate.load.discovery import discover, fits
from tokgate.load.prompts import PromptSet, build
from tokgate.load.routes import Protocol, resolve
from tokgate.load.sample import check_writable, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokgate.load.client import Deadlines, Measurement, Slo, Stamps
    from tokgate.load.processes import Progress

app = typer.Typer(add_completion=False)
SCHEMA = "tokgate-bench/1"

# Shown first, in this order, with what people call them.
ROWS = (
    ("output_tok_s", "output, whole run", "tok/s"),
    ("output_tok_s_steady", "output, steady", "tok/s"),
    ("decode_tok_s", "output, while decoding", "tok/s"),
    ("ttft_s", "TTFT", "ms"),
    ("step_ms", "step gap (per chunk)", "ms"),
    ("tokens_per_step", "tokens per step", ""),
    ("tpot_ms", "TPOT", "ms"),
    ("e2e_s", "request", "s"),
    ("accept_length", "accept length", ""),
    ("cycle_ms", "verify cycle", "ms"),
    ("cached_share", "prompt tokens from cache", "%"),
    ("queue_s", "queue", "ms"),
    ("goodput_request_per_s", "goodput", "req/s"),
)


@app.command()
def bench(
    url: Annotated[str, typer.Argument(help="base URL of the server, http://HOST:PORT")],
    workload: Annotated[
        str | None, typer.Option(help="FILE:NAME of a workloads.yaml; its values replace the options below")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="requests in flight at once")] = 1,
    requests: Annotated[
        int | None, typer.Option(min=1, help="requests to send; default 4 per concurrent one")
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
    route: Annotated[
        str | None, typer.Option(help="generate, completions or chat; found out if left out")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="open loop: requests a second")] = None,
    arrival: Annotated[
        str, typer.Option(help="open loop: poisson, constant, or trace (its at_s)")
    ] = "poisson",
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

    Exit code: 0 measured; 1 requests failed or the server stalled; 2 usage; 3 measured, but void.
    """
    from tokgate.load.client import Deadlines, Slo

    protocol = Protocol(headers=_headers(header or []))
    target = resolve(url)
    found = discover(target, route=_route(route), model=model, headers=protocol.headers)
    if workload is not None:
        plan = _from_file(workload)
        if route is not None and _route(route) != plan.route:
            raise UsageFault(f"--route {route} contradicts workload '{plan.name}', which says {plan.route}")
    else:
        plan = Workload(
            name="bench",
            concurrency=concurrency,
            requests=requests or 4 * concurrency,
            output_tokens=output_tokens,
            prompts=_prompts(prompts, found.route, prompt_tokens, shared_prefix, seed),
            arrival=_arrival(arrival, rate, seed),
            route=found.route,
        )
        if plan.arrival is None and plan.requests < plan.concurrency:
            raise UsageFault(f"--requests {plan.requests} is fewer than --concurrency {plan.concurrency}")
    fits(plan, found)
    if json_file is not None:
        check_writable(json_file)
    protocol = replace(protocol, model=found.model)
    deadlines = Deadlines(first_token_s=first_token_s, gap_s=gap_s, request_s=request_s)
    slo = Slo(slo_ttft_s, slo_tpot_ms) if slo_ttft_s is not None or slo_tpot_ms is not None else None
    measured = _run(
        url,
        plan,
        protocol,
        deadlines,
        slo,
        pins=_cpus(pin_cpus),
        stamps=_stamps(stamps),
        warmup=plan.concurrency if warmup is None else warmup,
        quiet=quiet,
    )
    _show(url, found.server, plan, measured)
    if json_file is not None:
        write_json(json_file, _document(url, found.server, plan, measured))
    good = sum(r.outcome in ("ok", "short") for r in measured.requests)
    if not good:
        raise LoadFault("no request was answered", [v.message for v in measured.void])
    raise typer.Exit(1 if good < len(measured.requests) else 3 if measured.void else 0)


def _route(name: str | None) -> Route | None:
    if name is None:
        return None
    for known in get_args(Route):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise UsageFault(f"--route '{name}': expected generate, completions or chat")


def _from_file(spec: str) -> Workload:
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise UsageFault(f"--workload '{spec}': expected FILE:NAME, such as workloads.yaml:chat-bs1")
    return load_workloads(Path(path), "gpu").get(name)


def _headers(lines: list[str]) -> dict[str, str]:
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not line.isprintable():
            raise UsageFault(f"--header '{line}': expected 'Name: value'")
        found[name.strip()] = value.strip()
    return found


def _prompts(kind: str | None, route: Route, length: int, shared: float, seed: int) -> Prompts:
    kind = kind or ("text" if route == "chat" else "tokens")
    if kind == "tokens":
        return Prompts(length_tokens=length, shared_prefix=shared, seed=seed)
    if kind == "text":
        return Prompts(kind="text", seed=seed)
    return Prompts(kind="trace", path=kind)


def _arrival(process: str, rate: float | None, seed: int) -> Arrival | None:
    processes: dict[str, Literal["poisson", "constant", "trace"]] = {
        "poisson": "poisson",
        "constant": "constant",
        "trace": "trace",
    }
    if process not in processes:
        raise UsageFault(f"--arrival '{process}': expected poisson, constant or trace")
    if process == "trace":
        return Arrival("trace")
    if rate is None:
        return None
    if not 0 < rate < 1e6:
        raise UsageFault(f"--rate {rate}: expected requests a second above 0")
    return Arrival(processes[process], rate, seed)


def _cpus(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageFault(f"--pin-cpus '{text}': expected CPU numbers such as 14,15") from None


def _stamps(name: str) -> Stamps:
    if name not in ("kernel", "tap"):
        raise UsageFault(f"--stamps '{name}': expected kernel or tap")
    return "tap" if name == "tap" else "kernel"


def _run(
    url: str,
    plan: Workload,
    protocol: Protocol,
    deadlines: Deadlines,
    slo: Slo | None,
    *,
    pins: list[int] | None,
    stamps: Stamps,
    warmup: int,
    quiet: bool,
) -> Measurement:
    from tokgate.load.client import measure

    with _progress(quiet) as show:
        if warmup and plan.prompts.kind != "trace":
            # Other prompts than the measured ones, whose prefixes would otherwise be in the server's cache.
            before = replace(
                plan,
                requests=warmup,
                concurrency=min(plan.concurrency, warmup),
                arrival=None,
                prompts=replace(plan.prompts, seed=plan.prompts.seed + plan.requests + 1),
            )
            measure(url, before, build(before), deadlines=deadlines, protocol=protocol, pin_cpus=pins)
        chosen: PromptSet = build(plan)
        return measure(
            url,
            plan,
            chosen,
            deadlines=deadlines,
            protocol=protocol,
            slo=slo,
            pin_cpus=pins,
            stamps=stamps,
            on_progress=show,
        )


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("warm-up", total=None, rate="")

        def show(progress: Progress) -> None:
            rate = f"{progress.events / progress.elapsed_s:.0f} chunks/s" if progress.elapsed_s > 0 else ""
            failed = f", {progress.failed} failed" if progress.failed else ""
            bar.update(
                task,
                description="measuring",
                total=progress.total,
                completed=progress.done,
                rate=rate + failed,
            )

        yield show


def _document(url: str, server: str, plan: Workload, measured: Measurement) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "tokgate": __version__,
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "url": url,
        "server": server,
        "workload": asdict(plan),
        "workload_digest": plan.digest,
        "prompts_digest": measured.prompts_digest,
        "duration_s": measured.duration_s,
        "metrics": measured.metrics,
        "audit": asdict(measured.audit),
        "void": [asdict(reason) for reason in measured.void],
        "requests": [asdict(request) for request in measured.requests],
    }


def _show(url: str, server: str, plan: Workload, measured: Measurement) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    load = f"closed loop, {plan.concurrency} at once"
    if plan.arrival is not None:
        rate = f" {plan.arrival.rate_per_s:g} requests/s" if plan.arrival.rate_per_s else ""
        load = f"open loop, {plan.arrival.process}{rate}"
    console.print(f"{server} at {url}, {plan.route}", markup=False)
    console.print(
        f"{load}; {plan.requests} requests of {plan.output_tokens} tokens; {measured.duration_s:.2f} s",
        markup=False,
    )
    table = Table("metric", box=None, pad_edge=False)
    for title in ("value", "p50", "p99", "unit"):
        table.add_column(title, justify="left" if title == "unit" else "right")
    for name, title, unit in ROWS:
        stem = name
        scale = 1e3 if unit == "ms" and name.endswith("_s") else 100 if unit == "%" else 1
        values = [measured.metrics.get(key) for key in (name, f"{stem}_p50", f"{stem}_p99")]
        if any(value is not None for value in values):
            table.add_row(title, *("" if v is None else f"{v * scale:.4g}" for v in values), unit)
    console.print(table)
    audit = measured.audit
    lag = "no kernel stamps" if audit.lag_p99_s is None else f"lag p99 {audit.lag_p99_s * 1e6:.0f} us"
    reads = f"merged reads {audit.merged_read_share:.2%}"
    read_by = "compiled" if audit.reader == "c" else f"python ({audit.reader_reason})"
    console.print(f"client: {audit.stamp_tier} stamps, {lag}, {reads}, reader {read_by}", markup=False)
    for reason in measured.void:
        console.print(f"VOID {reason.cause}: {reason.message}", markup=False)
