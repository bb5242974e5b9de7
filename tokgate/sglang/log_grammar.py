"""How SGLang words its log lines: patterns of both eras (to 0.5.13, from 0.5.14), line -> event.

Works on bytes; text is decoded only for lines that say something. Read from the sources of the wheels
0.5.9 to 0.5.23 and checked against real logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from tokgate.sglang import log_events as ev

# `[2026-11-29 12:40:29 DP0 TP1]`, wherever it stands: writers that share a pipe cut into each other's lines.
HEADER = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?((?: [A-Z]+\d+)*)\] ?")

DECODE = re.compile(
    rb"Decode batch(?: \[\d+\])?, #running-req: (\d+),(?: #token: (\d+),)?[^\n]*?"
    rb"(?: accept len: ([\d.]+),[^\n]*?)?"
    rb"(?: (cuda|cpu|npu|musa|xpu) graph: (True|False),)? gen throughput \(token/s\): ([\d.]+)"
    rb"(?:, #queue-req: (\d+))?"
)
_PREFILL_FIELD = re.compile(rb"(#new-seq|#new-token|#cached-token|#running-req|#queue-req): (\d+)")
_PREFILL_GRAPH = re.compile(rb"(?:cuda|cpu|npu|musa|xpu) graph: (True|False)")

_CAPTURE = re.compile(rb"Capture (.*?)(cuda|cpu|npu|musa|xpu)? ?graph (begin|end|bs|num tokens)\b(.*)", re.I)
_SIZES = re.compile(rb"\[([\d, ]*)\]")
_NUMBER = rb"(-?[\d.]*\d)"
_ELAPSED = re.compile(rb"(?:elapsed=|Time elapsed: )" + _NUMBER)
_AVAILABLE = re.compile(rb"avail(?:able)?_?(?:gpu|cpu)?[_ ]mem=" + _NUMBER)
_USED = re.compile(rb"mem usage=" + _NUMBER)
_MODEL = re.compile(rb"type=(\w+)")
_BACKEND = re.compile(rb"backend=(\w+)")
_KV_TOKENS = re.compile(rb"#tokens: (\d+)")
_KV_DTYPE = re.compile(rb"dtype: (?:torch\.)?(\w+)")
_KV_SIZE = re.compile(rb"(?:K|V|KV) size: ([\d.]+) GB")
_CAPACITY = re.compile(rb"(max_total_num_tokens|max_running_requests|context_len)=(\d+)")
_WATCHDOG = re.compile(
    rb"(?:(\w+) )?watchdog timeout(?: \(self\.watchdog_timeout=([\d.]+)(?:, self\.soft=(True|False))?)?", re.I
)
_HYBRID = re.compile(rb"(decode|prefill)_backend=(\w+)")
_TIMING = re.compile(rb"(\w+)=([\d.]+)")
_PROGRESS = re.compile(rb"(Capturing[\w ]*|[\w\- ]*loading[\w ]*shards)\b.*?\| ?(\d+)/(\d+) \[", re.I)
_RETRACTED = re.compile(rb"#retracted_reqs?: (\d+)")
_NCCL = re.compile(rb"using nccl==([\w.]+)")
_HEALTH_SECONDS = re.compile(rb"for last ([\d.]+) seconds")

# The kinds of the older era, by what stands between "Capture" and "cuda graph".
_KINDS: Mapping[str, str] = {
    "": "target",
    "piecewise": "target-prefill",
    "prefill": "target-prefill",
    "draft": "draft-decode",
}

Where = tuple[datetime | None, str | None]
Parser = Callable[[bytes, Where], "ev.Event | None"]


def text(raw: bytes) -> str:
    """Bytes of a log as text; what is not UTF-8 is shown as a replacement character."""
    return raw.decode("utf-8", "replace").rstrip()


def _float(pattern: re.Pattern[bytes], message: bytes) -> float | None:
    match = pattern.search(message)
    return float(match[1]) if match else None


def _ints(message: bytes) -> tuple[int, ...] | None:
    match = _SIZES.search(message)
    return tuple(int(part) for part in match[1].split(b",") if part.strip()) if match else None


def decode(message: bytes, where: Where) -> ev.Event | None:
    """A decode statistics line; ``None`` when it is cut short."""
    match = DECODE.search(message)
    if match is None:
        return None
    running, tokens, accept, device, graph, rate, queue = match.groups()
    return ev.DecodeBatch(
        time=where[0],
        rank=where[1],
        running=int(running),
        tokens=int(tokens) if tokens else None,
        accept_length=float(accept) if accept else None,
        graph=graph == b"True" if graph else None,
        graph_device=device.decode() if device else None,
        gen_tok_s=float(rate),
        queue=int(queue) if queue else None,
    )


def prefill(message: bytes, where: Where) -> ev.Event | None:
    """A prefill statistics line."""
    fields = {name: int(number) for name, number in _PREFILL_FIELD.findall(message)}
    graph = _PREFILL_GRAPH.search(message)
    return ev.PrefillBatch(
        time=where[0],
        rank=where[1],
        new_sequences=fields.get(b"#new-seq"),
        new_tokens=fields.get(b"#new-token"),
        cached_tokens=fields.get(b"#cached-token"),
        running=fields.get(b"#running-req"),
        queue=fields.get(b"#queue-req"),
        graph=graph[1] == b"True" if graph else None,
    )


def capture_kind(printed: str) -> str:
    """The normal name of a capture, from what stands between "Capture" and "cuda graph"."""
    word = " ".join(printed.lower().split())
    return _KINDS.get(word, word.replace(" ", "-"))


def capture(message: bytes, where: Where) -> ev.Event | tuple[int, ...] | None:
    """A capture line; the sizes alone for the older era's line that lists only them."""
    match = _CAPTURE.match(message)
    if match is None:
        return None
    printed, device, edge, rest = match.groups()
    if edge in {b"bs", b"num tokens"}:
        return _ints(rest)
    kind = capture_kind(text(printed))
    name = (device or b"cuda").decode().lower()
    if edge.lower() == b"begin":
        backend = _BACKEND.search(rest)
        return ev.CaptureBegin(
            time=where[0],
            rank=where[1],
            kind=kind,
            sizes=_ints(rest),
            backend=text(backend[1]) if backend else None,
            available_gb=_float(_AVAILABLE, rest),
            device=name,
        )
    return ev.CaptureEnd(
        time=where[0],
        rank=where[1],
        kind=kind,
        seconds=_float(_ELAPSED, rest),
        used_gb=_float(_USED, rest),
        available_gb=_float(_AVAILABLE, rest),
        device=name,
    )


def weights(message: bytes, where: Where) -> ev.Event | None:
    """``Load weight begin`` or ``end``."""
    if message.startswith(b"Load weight begin"):
        return ev.WeightsBegin(time=where[0], rank=where[1], available_gb=_float(_AVAILABLE, message))
    if not message.startswith(b"Load weight end"):
        return None
    model = _MODEL.search(message)
    return ev.WeightsEnd(
        time=where[0],
        rank=where[1],
        seconds=_float(_ELAPSED, message),
        model=text(model[1]) if model else None,
        used_gb=_float(_USED, message),
        available_gb=_float(_AVAILABLE, message),
    )


def kv_cache(message: bytes, where: Where) -> ev.Event | None:
    """``KV Cache is allocated``, or the retraction line, which begins with the same letters."""
    if b"Retract requests" in message:
        return retraction(message, where)
    tokens = _KV_TOKENS.search(message)
    if tokens is None:
        return None
    dtype = _KV_DTYPE.search(message)
    sizes = [float(size) for size in _KV_SIZE.findall(message)]
    return ev.KvCache(
        time=where[0],
        rank=where[1],
        tokens=int(tokens[1]),
        dtype=text(dtype[1]) if dtype else None,
        size_gb=round(sum(sizes), 2) if sizes else None,
    )


def retraction(message: bytes, where: Where) -> ev.Event:
    """Requests taken back."""
    count = _RETRACTED.search(message)
    return ev.Retraction(time=where[0], rank=where[1], requests=int(count[1]) if count else None)


def capacity(message: bytes, where: Where) -> ev.Event | None:
    """The scheduler's limits."""
    fields = {name: int(number) for name, number in _CAPACITY.findall(message)}
    if b"max_total_num_tokens" not in fields:
        return None
    return ev.Capacity(
        time=where[0],
        rank=where[1],
        max_total_tokens=fields[b"max_total_num_tokens"],
        max_running_requests=fields.get(b"max_running_requests"),
        context_length=fields.get(b"context_len"),
        available_gb=_float(_AVAILABLE, message),
    )


def watchdog(message: bytes, where: Where) -> ev.Event | None:
    """A watchdog that fired, of either era."""
    match = _WATCHDOG.search(message)
    if match is None:
        return None
    subject, timeout, soft = match.groups()
    return ev.Watchdog(
        time=where[0],
        rank=where[1],
        subject=text(subject) if subject else "Scheduler",
        timeout_s=float(timeout) if timeout else None,
        soft=soft == b"True",
    )


def hybrid(message: bytes, where: Where) -> ev.Event:
    """Different attention backends for prefill and decode."""
    backends = {text(role): text(name) for role, name in _HYBRID.findall(message)}
    return ev.HybridAttention(
        time=where[0],
        rank=where[1],
        prefill_backend=backends.get("prefill"),
        decode_backend=backends.get("decode"),
    )


def health(message: bytes, where: Where) -> ev.Event:
    """The health probe got no answer."""
    return ev.HealthFailure(time=where[0], rank=where[1], seconds=_float(_HEALTH_SECONDS, message))


def timings(message: bytes, where: Where) -> ev.Event:
    """SGLang's own account of its start-up."""
    seconds = {text(name): float(number) for name, number in _TIMING.findall(message)}
    return ev.StartupTimings(time=where[0], rank=where[1], seconds=seconds)


def progress(message: bytes, where: Where) -> ev.Progress | None:
    """A progress bar of weight loading or capture."""
    match = _PROGRESS.search(message)
    if match is None:
        return None
    what, done, total = match.groups()
    return ev.Progress(
        time=where[0], rank=where[1], what=text(what).strip(), done=int(done), total=int(total)
    )


def nccl(message: bytes, where: Where) -> ev.Event | None:
    """NCCL's version."""
    match = _NCCL.search(message)
    return ev.NcclVersion(time=where[0], rank=where[1], version=text(match[1])) if match else None
