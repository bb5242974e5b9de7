"""Incremental reader of SGLang's log: bytes in, typed events out.

Survives what real logs hold: any cut between reads, UTF-8 errors and UTF-16, colours, progress bars that
overwrite themselves with carriage returns, several processes writing into one another's lines, a last
line that was never finished. The same bytes give the same events however they are cut.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from tokgate.sglang import log_events as ev
from tokgate.sglang import log_grammar as grammar
from tokgate.sglang.log_events import Event

MAX_LINE_BYTES = 1 << 20
MAX_BLOCK_LINES = 400
_CACHE_SIZE = 4096

_FIRST_WORDS: Mapping[bytes, grammar.Parser] = {
    b"Decode": grammar.decode,
    b"Prefill": grammar.prefill,
    b"Load": grammar.weights,
    b"KV": grammar.kv_cache,
    b"Testing": grammar.retraction,
    b"Health": grammar.health,
    b"Engine": grammar.timings,
    b"Watchdog": grammar.watchdog,
    b"sglang": grammar.nccl,
}
_PREFIXES: tuple[tuple[bytes, grammar.Parser], ...] = (
    (b"Using hybrid attention backend", grammar.hybrid),
    (b"server_args=", grammar.server_args),
    (b"max_total_num_tokens=", grammar.capacity),
)
_GUARDS: Mapping[bytes, bytes] = {
    b"Decode": b"Decode batch",
    b"Prefill": b"Prefill batch",
    b"Testing": b"Testing retraction",
    b"Health": b"Health check failed",
    b"Engine": b"Engine startup timings",
}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class LogReader:
    """Reads one log, in pieces.

    ``feed`` returns the events of the lines that are complete; ``close`` those of what is left. A line's
    event comes when its newline does, a traceback's when the traceback has ended.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._start: bytes | None = b""
        self._block: list[str] = []
        self._block_where: grammar.Where = (None, None)
        self._block_benign = False
        self._block_fatal = False
        self._block_raised = False
        self._speculative = False
        self._sizes: dict[tuple[str | None, str], tuple[int, ...]] = {}
        self._last_capture: tuple[str | None, str] = (None, "")
        self._last_progress: ev.Progress | None = None
        self._shutdown = False
        self._stamp = b""
        self._time: datetime | None = None
        self._verdicts: dict[bytes, tuple[str, str | None] | None] = {}

    def feed(self, data: bytes) -> list[Event]:
        """Events of the lines that ``data`` completes.

        Args:
            data: the log's next bytes, cut anywhere.
        """
        data = self._normal(data)
        if not data:
            return []
        pending = self._pending + data if self._pending else data
        lines = pending.split(b"\n")
        self._pending = lines.pop()
        events: list[Event] = []
        for line in lines:
            if len(line) > MAX_LINE_BYTES:
                self._long(line, events)
            else:
                self._line(line, events)
        while len(self._pending) > MAX_LINE_BYTES:
            self._line(self._pending[:MAX_LINE_BYTES], events)
            self._pending = self._pending[MAX_LINE_BYTES:]
        return events

    def close(self) -> list[Event]:
        """Events of an unfinished last line and of a traceback still open.

        Statistics of an unfinished line are dropped: their last number may be cut.
        """
        events: list[Event] = []
        if self._start:
            held, self._start = self._start, None
            events += self.feed(held)
        if self._pending:
            tail, self._pending = self._pending, b""
            cut: list[Event] = []
            self._line(tail, cut)
            events += [event for event in cut if not isinstance(event, ev.DecodeBatch | ev.PrefillBatch)]
        self._end_block(events)
        return events

    def _normal(self, data: bytes) -> bytes:
        """UTF-8 without byte order mark; decides the encoding from the first bytes."""
        if self._start is not None:
            held = self._start + data
            if len(held) < 3 and any(bom.startswith(held) for bom, _ in _BOMS):
                self._start = held
                return b""
            self._start = None
            data = held
            for bom, name in _BOMS:
                if held.startswith(bom):
                    self._decoder = codecs.getincrementaldecoder(name)("replace")
                    break
        if self._decoder is not None:
            return self._decoder.decode(data).encode("utf-8", "replace")
        return data

    def _long(self, line: bytes, events: list[Event]) -> None:
        for begin in range(0, len(line), MAX_LINE_BYTES):
            self._line(line[begin : begin + MAX_LINE_BYTES], events)

    def _line(self, line: bytes, events: list[Event]) -> None:
        if b"\x1b" in line:
            line = grammar.ANSI.sub(b"", line)
        if b"\r" in line:
            if line.endswith(b"\r"):
                line = line[:-1]
            for part in line.split(b"\r"):
                self._part(part, events)
        else:
            self._part(line, events)

    def _part(self, part: bytes, events: list[Event]) -> None:
        """One overwriting of a line: cut it before each header that stands in it."""
        header = grammar.HEADER.search(part)
        if header is None:
            self._raw(part, events)
            return
        if header.start() > 0:
            self._raw(part[: header.start()], events)
        while header is not None:
            following = grammar.HEADER.search(part, header.end())
            message = part[header.end() : following.start() if following else len(part)]
            if header[1] != self._stamp:
                self._stamp = header[1]
                self._time = _timestamp(header[1])
            rank = header[2]
            self._message(message, (self._time, rank.decode().strip() if rank else None), events)
            header = following

    def _message(self, message: bytes, where: grammar.Where, events: list[Event]) -> None:
        """What follows a header."""
        if self._block:
            self._end_block(events)
        if message.startswith(b"INFO: "):
            if b"Uvicorn running on" in message:
                events.append(ev.Serving(time=where[0], rank=where[1]))
            return
        first = message.partition(b" ")[0]
        if first == b"Capture" and self._capture(message, where, events):
            return
        parser = _FIRST_WORDS.get(first)
        if parser is not None and message.startswith(_GUARDS.get(first, b"")):
            event = parser(message, where)
            if event is not None:
                events.append(event)
                return
        self._rare(message, where, events)

    def _rare(self, message: bytes, where: grammar.Where, events: list[Event]) -> None:
        for prefix, parser in _PREFIXES:
            if message.startswith(prefix):
                event = parser(message, where)
                if isinstance(event, ev.ServerArgs):
                    self._speculative |= bool(event.values.get("speculative_algorithm"))
                if event is not None:
                    events.append(event)
                return
        if message.startswith(b"The server is fired up and ready to roll"):
            events.append(ev.Ready(time=where[0], rank=where[1]))
        elif message.startswith((b"Init torch distributed begin", b"Init parallel begin")):
            events.append(ev.DistributedBegin(time=where[0], rank=where[1]))
        elif b"atchdog timeout" in message:
            event = grammar.watchdog(message, where)
            if event is not None:
                events.append(event)
        else:
            self._judge(message, where, events)

    def _judge(self, message: bytes, where: grammar.Where, events: list[Event]) -> None:
        """Fatal, asked for, benign, a hint, suspect, or of no interest."""
        verdict = self._verdict(message)
        if verdict is None:
            return
        word, detail = verdict
        printed = grammar.text(message)
        if grammar.TRACEBACK in message:
            self._open_block(printed, where, benign=word == "benign", fatal=word == "fatal")
            if word == "benign":
                events.append(ev.Benign(time=where[0], rank=where[1], reason=detail or "", text=printed))
        elif word == "fatal":
            events.append(self._fatal((printed,), where))
        elif word == "shutdown":
            self._shutdown = True
            events.append(ev.Shutdown(time=where[0], rank=where[1], text=printed))
        elif word == "benign":
            events.append(ev.Benign(time=where[0], rank=where[1], reason=detail or "", text=printed))
        elif word == "hint":
            events.append(ev.Hint(time=where[0], rank=where[1], text=printed, key=detail))
        else:
            events.append(ev.Suspect(time=where[0], rank=where[1], text=printed))

    def _verdict(self, message: bytes) -> tuple[str, str | None] | None:
        """What a message is, remembered: warnings come in thousands of equal lines."""
        try:
            return self._verdicts[message]
        except KeyError:
            verdict = _classify(message)
            if len(self._verdicts) < _CACHE_SIZE and len(message) < 512:
                self._verdicts[message] = verdict
            return verdict

    def _raw(self, part: bytes, events: list[Event]) -> None:
        """Text without a header: a traceback's next line, a progress bar, a warning, a crash."""
        if self._block:
            if self._continues(part):
                return
            self._end_block(events)
        if not part or part.isspace():
            return
        where: grammar.Where = (self._time, None)
        if b"|" in part and b"%" in part:
            self._progress(part, where, events)
        elif part.startswith(b"INFO: "):
            if b"Uvicorn running on" in part:
                events.append(ev.Serving(time=where[0]))
        elif not part[:1].isspace():
            self._judge(part, where, events)

    def _progress(self, part: bytes, where: grammar.Where, events: list[Event]) -> None:
        event = grammar.progress(part, where)
        last = self._last_progress
        if event is not None and (
            last is None or (event.what, event.done, event.total) != (last.what, last.done, last.total)
        ):
            self._last_progress = event
            events.append(event)

    def _capture(self, message: bytes, where: grammar.Where, events: list[Event]) -> bool:
        found = grammar.capture(message, where)
        if found is None:
            return False
        if isinstance(found, tuple):
            # The older era lists the sizes on a line of their own, printed by the first rank only.
            self._sizes[self._last_capture] = found
            return True
        if isinstance(found, ev.CaptureBegin):
            kind = self._target(found.kind)
            self._last_capture = (where[1], kind)
            if found.sizes:
                self._sizes[self._last_capture] = found.sizes
            events.append(replace(found, kind=kind))
        elif isinstance(found, ev.CaptureEnd):
            kind = self._target(found.kind)
            events.append(replace(found, kind=kind, sizes=self._sizes.pop((where[1], kind), None)))
        return True

    def _target(self, kind: str) -> str:
        if kind != "target":
            return kind
        return "target-verify" if self._speculative else "target-decode"

    def _open_block(self, first: str, where: grammar.Where, *, benign: bool, fatal: bool) -> None:
        self._block = [first]
        self._block_where = where
        self._block_benign = benign
        self._block_fatal = fatal
        self._block_raised = False

    def _continues(self, part: bytes) -> bool:
        """Whether the line belongs to the open traceback; if so it is kept."""
        printed = grammar.text(part)
        if self._block_raised and not self._block[-1]:
            # After the exception's own line and a blank one, only a chained exception goes on.
            if not part.startswith((b"During handling of", b"The above exception", b"Traceback (most")):
                return False
            self._block_raised = False
        if printed and not part[:1].isspace() and grammar.TRACEBACK not in part:
            chained = part.startswith((b"During handling of", b"The above exception"))
            self._block_raised = self._block_raised or not chained
        if len(self._block) < MAX_BLOCK_LINES:
            self._block.append(printed)
        return True

    def _end_block(self, events: list[Event]) -> None:
        if not self._block:
            return
        lines = list(self._block)
        self._block = []
        while lines and not lines[-1]:
            lines.pop()
        if self._block_fatal:
            events.append(self._fatal(tuple(lines), self._block_where))
        elif not self._block_benign:
            time, rank = self._block_where
            events.append(ev.ExceptionSeen(time=time, rank=rank, lines=tuple(lines)))

    def _fatal(self, lines: tuple[str, ...], where: grammar.Where) -> ev.Fatal:
        return ev.Fatal(time=where[0], rank=where[1], lines=lines, after_shutdown=self._shutdown)


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """All events of a log given in pieces."""
    reader = LogReader()
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.close()


def phase_of(event: Event) -> str | None:
    """The start-up phase that a server is in after this event; ``None`` when the event does not say.

    ``imports``, ``weights``, ``kv_cache``, ``capture:<kind>@TPn``, ``warmup``, ``ready``; before the first
    event it is ``spawn``. Phases come back: with speculation the draft's weights follow the target's.
    """
    match event:
        case ev.ServerArgs() | ev.DistributedBegin():
            return "imports"
        case ev.WeightsBegin():
            return "weights"
        case ev.WeightsEnd() | ev.KvCache():
            return "kv_cache"
        case ev.CaptureBegin(kind=kind, rank=rank):
            return f"capture:{kind}@{_tensor_rank(rank)}"
        case ev.CaptureEnd() | ev.Capacity() | ev.Serving():
            return "warmup"
        case ev.Ready():
            return "ready"
        case _:
            return None


def is_fatal(event: Event) -> bool:
    """Whether the server does not survive what the event tells."""
    return isinstance(event, ev.Fatal) or (isinstance(event, ev.Watchdog) and not event.soft)


def _tensor_rank(rank: str | None) -> str:
    parts = (rank or "").split()
    return next((part for part in parts if part.startswith("TP")), rank or "TP0")


def _timestamp(stamp: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat(stamp.decode())
    except ValueError:
        return None


def _classify(message: bytes) -> tuple[str, str | None] | None:
    if grammar.FATAL.search(message):
        return "fatal", None
    if grammar.SHUTDOWN.search(message):
        return "shutdown", None
    for reason, pattern in grammar.BENIGN:
        if pattern.search(message):
            return "benign", reason
    for key, pattern in grammar.HINTS:
        if pattern.search(message):
            return "hint", key
    if grammar.SUSPECT.search(message):
        return "suspect", None
    return None
