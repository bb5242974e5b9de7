"""Incremental reader of SGLang's log: bytes in, typed events out.

Survives what real logs hold: any cut between reads, UTF-8 errors and UTF-16, colours, progress bars that
overwrite themselves with carriage returns, several processes writing into one another's lines, a last
line that was never finished. The same bytes give the same events however they are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from tokgate.sglang import log_events as ev
from tokgate.sglang import log_grammar as grammar
from tokgate.sglang.log_arguments import server_args
from tokgate.sglang.log_events import Event
from tokgate.sglang.log_lines import LineCutter
from tokgate.sglang.log_phases import is_fatal, phase_of
from tokgate.sglang.log_words import classify
from tokgate.sglang.traceback_block import TRACEBACK, TracebackBlock

__all__ = ["LogReader", "is_fatal", "phase_of", "read_events"]

_CACHE_SIZE = 4096
_UNKNOWN = ("unknown", None)

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
    (b"server_args=", server_args),
    (b"max_total_num_tokens=", grammar.capacity),
)
_GUARDS: Mapping[bytes, bytes] = {
    b"Decode": b"Decode batch",
    b"Prefill": b"Prefill batch",
    b"Testing": b"Testing retraction",
    b"Health": b"Health check failed",
    b"Engine": b"Engine startup timings",
}


class LogReader:
    """Reads one log, in pieces.

    ``feed`` returns the events of the lines that are complete; ``close`` those of what is left. A line's
    event comes when its newline does, a traceback's when the traceback has ended.
    """

    def __init__(self) -> None:
        self._cutter = LineCutter()
        self._block: TracebackBlock | None = None
        self._speculative = False
        self._sizes: dict[tuple[str | None, str], tuple[int, ...]] = {}
        self._last_capture: tuple[str | None, str] = (None, "")
        self._last_progress: ev.Progress | None = None
        self._shutdown = False
        self._ignored = False
        self._stamp = b""
        self._time: datetime | None = None
        self._verdicts: dict[bytes, tuple[str, str | None] | None] = {}

    def feed(self, data: bytes) -> list[Event]:
        """Events of the lines that ``data`` completes.

        Args:
            data: the log's next bytes, cut anywhere.
        """
        events: list[Event] = []
        for part in self._cutter.feed(data):
            self._part(part, events)
        return events

    def close(self) -> list[Event]:
        """Events of an unfinished last line and of a traceback still open.

        Statistics of an unfinished line are dropped: their last number may be cut.
        """
        events: list[Event] = []
        cut: list[Event] = []
        for part in self._cutter.close():
            self._part(part, cut)
        events += [event for event in cut if not isinstance(event, ev.DecodeBatch | ev.PrefillBatch)]
        self._end_block(events)
        return events

    @property
    def at_line_start(self) -> bool:
        """Whether no line is unfinished."""
        return self._cutter.empty

    def end_traceback(self) -> list[Event]:
        """End a traceback that is open: something stood between it and what follows."""
        events: list[Event] = []
        self._end_block(events)
        return events

    def _part(self, part: bytes, events: list[Event]) -> None:
        """One line, or one overwriting of it: cut it before each header that stands in it."""
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
        was_ignored, self._ignored = self._ignored, message.startswith(b"Exception ignored in")
        printed = grammar.text(message)
        if TRACEBACK in message:
            # Python prints what it ignored (at exit, in a destructor) with a traceback of its own.
            word = "benign" if was_ignored else word
            self._block = TracebackBlock(message, where, word)
            detail = detail or "Python at exit"
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
        verdict = self._verdicts.get(message, _UNKNOWN)
        if verdict is _UNKNOWN:
            verdict = classify(message)
            if verdict is not None and len(self._verdicts) < _CACHE_SIZE and len(message) < 512:
                self._verdicts[message] = verdict
        return verdict

    def _raw(self, part: bytes, events: list[Event]) -> None:
        """Text without a header: a traceback's next line, a progress bar, a warning, a crash."""
        if self._block:
            if self._block.take(part):
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

    def _end_block(self, events: list[Event]) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        time, rank = block.where
        if block.word == "fatal":
            events.append(self._fatal(block.lines, block.where))
        elif block.word == "benign":
            return
        else:
            events.append(ev.ExceptionSeen(time=time, rank=rank, lines=block.lines))

    def _fatal(self, lines: tuple[str, ...], where: grammar.Where) -> ev.Fatal:
        return ev.Fatal(time=where[0], rank=where[1], lines=lines, after_shutdown=self._shutdown)


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """All events of a log given in pieces."""
    reader = LogReader()
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.close()


def _timestamp(stamp: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat(stamp.decode())
    except ValueError:
        return None
