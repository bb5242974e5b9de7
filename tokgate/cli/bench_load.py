"""What ``tokgate bench`` is to ask of a server: its options as a workload, and what they cannot mean."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import typer

from tokgate.config.workloads import Arrival, Prompts, Route, Workload, load_workloads
from tokgate.errors import UsageFault
from tokgate.load.prompts import trace_length

if TYPE_CHECKING:
    from tokgate.load.client import Slo, Stamps


def known_route(name: str | None) -> Route | None:
    """The route of that name."""
    if name is None:
        return None
    for known in get_args(Route):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise UsageFault(f"--route '{name}': expected generate, completions or chat")


# What a workload says by itself.
_OF_WORKLOAD = (
    *("concurrency", "requests", "output_tokens", "prompt_tokens", "shared_prefix", "prompts", "seed"),
    *("rate", "arrival"),
)


def refuse_beside_workload(context: typer.Context) -> None:
    """Options that say what the workload of a file says too, and would have no effect.

    Raises:
        UsageFault: one was given.
    """
    if named := _given(context, _OF_WORKLOAD):
        raise UsageFault(f"{named}: --workload says that already", ["leave one of them out"])


def refuse_beside_prompts(context: typer.Context, prompts: Prompts) -> None:
    """Options that have no effect on prompts of this kind.

    Raises:
        UsageFault: one was given.
    """
    if prompts.kind != "tokens" and (named := _given(context, ("prompt_tokens", "shared_prefix"))):
        raise UsageFault(
            f"{named}: for generated prompts only (--prompts tokens); these are of kind {prompts.kind}"
        )
    if prompts.kind == "trace" and context.params["warmup"]:
        raise UsageFault("--warmup: a trace is sent as it is, with none before it")


def _given(context: typer.Context, names: Sequence[str]) -> str:
    """The options among these that the command line has."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def from_file(spec: str, route: Route | None) -> Workload:
    """The workload that ``FILE:NAME`` names, in its size for GPUs; ``route`` must not contradict it."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise UsageFault(f"--workload '{spec}': expected FILE:NAME, such as workloads.yaml:chat-bs1")
    plan = load_workloads(Path(path), "gpu").get(name)
    if route is not None and route != plan.route:
        raise UsageFault(f"--route {route} contradicts workload '{plan.name}', which says {plan.route}")
    return plan


def from_options(
    route: Route,
    *,
    concurrency: int,
    requests: int | None,
    output_tokens: int,
    prompts: Prompts,
    arrival: Arrival | None,
) -> Workload:
    """A workload of options; of a trace all requests, unless their number is given."""
    if requests is None:
        requests = trace_length(Path(prompts.path)) if prompts.path is not None else 4 * concurrency
    if arrival is None and requests < concurrency:
        raise UsageFault(f"--requests {requests} is fewer than --concurrency {concurrency}")
    return Workload("bench", concurrency, requests, output_tokens, prompts, arrival, route)


def service_level(ttft_s: float | None, tpot_ms: float | None) -> Slo | None:
    """The limits of goodput; ``None`` when there is none."""
    from tokgate.load.metrics import Slo

    for name, value in (("--slo-ttft-s", ttft_s), ("--slo-tpot-ms", tpot_ms)):
        if value is not None and not 0 < value < math.inf:
            raise UsageFault(f"{name} {value:g}: expected a limit above 0")
    return Slo(ttft_s, tpot_ms) if (ttft_s, tpot_ms) != (None, None) else None


# A field's name, RFC 9110; and those that the client writes itself.
_FIELD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_FIELDS = ("host", "content-type", "accept", "content-length", "transfer-encoding", "connection")


def headers(lines: list[str]) -> dict[str, str]:
    """Header fields, of their lines."""
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip()
        if not colon or not _FIELD.fullmatch(name) or not line.isprintable() or not line.isascii():
            raise UsageFault(f"--header {line!r}: expected 'Name: value', in ASCII")
        if name.lower() in _OWN_FIELDS:
            raise UsageFault(f"--header {line!r}: the client writes this field itself")
        found[name] = value.strip()
    return found


def prompts_of(kind: str | None, route: Route, length: int, shared: float, seed: int) -> Prompts:
    """Where prompts come from."""
    kind = kind or ("text" if route == "chat" else "tokens")
    if kind == "tokens":
        return Prompts(length_tokens=length, shared_prefix=shared, seed=seed)
    if kind == "text":
        return Prompts(kind="text", seed=seed)
    return Prompts(kind="trace", path=kind)


def arrival_of(process: str | None, rate: float | None, seed: int) -> Arrival | None:
    """When requests are sent; ``None`` for a closed loop, which has neither a process nor a rate."""
    processes: dict[str, Literal["poisson", "constant", "trace"]] = {
        "poisson": "poisson",
        "constant": "constant",
        "trace": "trace",
    }
    if process is not None and process not in processes:
        raise UsageFault(f"--arrival '{process}': expected poisson, constant or trace")
    if process == "trace":
        if rate is not None:
            raise UsageFault(f"--rate {rate:g}: with --arrival trace the trace says when")
        return Arrival("trace")
    if rate is None:
        if process is not None:
            raise UsageFault(f"--arrival {process} needs --rate, requests a second")
        return None
    if not 0 < rate < 1e6:
        raise UsageFault(f"--rate {rate:g}: expected requests a second, above 0 and below 1000000")
    return Arrival(processes[process or "poisson"], rate, seed)


def cpus(text: str | None) -> list[int] | None:
    """CPUs, of a list such as ``14,15``."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageFault(f"--pin-cpus '{text}': expected CPU numbers such as 14,15") from None


def stamps_of(name: str) -> Stamps:
    """Who dates arrivals."""
    if name not in ("kernel", "tap"):
        raise UsageFault(f"--stamps '{name}': expected kernel or tap")
    return "tap" if name == "tap" else "kernel"
