"""The truth server, the raw reader, and what their logs say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokgate.errors import HostFault, LoadFault

HERE = Path(__file__).parent
TIMEOUT_S = 120
HELD_UP_NS = 25_000  # half a percent of a step of 5 ms, which is how well the truth must be known


def compiled(name: str, folder: Path) -> Path:
    """Build ``NAME.c`` of this folder into ``folder``.

    Raises:
        HostFault: no C compiler, or it fails.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise HostFault("the truth server is C, and there is no compiler 'cc' on this machine")
    path = folder / name
    command = [compiler, "-O2", "-o", str(path), str(HERE / f"{name}.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostFault(f"{name}.c does not compile", done.stderr.splitlines()[:10])
    return path


@contextmanager
def truth_server(binary: Path, cpus: Sequence[int], *options: str) -> Iterator[int]:
    """Run the truth server bound to ``cpus``; gives its port."""
    with subprocess.Popen(
        [binary, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield int(process.stdout.readline().split()[1])
        finally:
            process.stdin.close()
            process.wait(10)


@dataclass(frozen=True, slots=True)
class Truth:
    """What really was sent.

    Attributes:
        gaps_ms: between successive events of a request, all requests; by the clock before each send.
        itl_p99_ms: their 99th percentile, the least and the most that it can have been. A send that took 25 us longer
            than most was held up, and when in that time the event left nobody knows.
        ttft_s: per request, from its arrival at the server to the first send.
        tokens, events, requests: totals.
        duration_s: from the first arrival to the last send.
        decode_s: sum over requests of first to last send.
        first_tokens: tokens of all first events.
    """

    gaps_ms: np.typing.NDArray[np.float64]
    itl_p99_ms: tuple[float, float]
    ttft_s: np.typing.NDArray[np.float64]
    tokens: int
    events: int
    requests: int
    duration_s: float
    decode_s: float
    first_tokens: int

    def itl_error(self, p99_ms: float) -> float:
        """By how much a 99th percentile of the gaps is off, as a fraction; 0 where the truth is not known better."""
        least, most = self.itl_p99_ms
        return max(1 - p99_ms / least, p99_ms / most - 1, 0.0)

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of an event after the first."""
        return (self.tokens - self.first_tokens) / (self.events - self.requests)

    @property
    def tpot_ms(self) -> float:
        """Decode time per token."""
        return self.decode_s / (self.tokens - self.first_tokens) * 1e3

    @property
    def tok_s(self) -> float:
        """Tokens a second over the whole run."""
        return self.tokens / self.duration_s


def read_log(port: int) -> Truth:
    """Fetch and clear the truth server's log.

    Raises:
        LoadFault: it is empty.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/log", timeout=30) as answer:
        lines = answer.read().splitlines()
    events: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for line in lines:
        request, _, tokens, sent_ns, arrived_ns, done_ns = map(int, line.split())
        events[request].append((tokens, sent_ns, arrived_ns, done_ns))
    if not events:
        raise LoadFault("the truth server's log is empty: the client sent it nothing")
    rows = list(events.values())
    sends = [np.array([sent for _, sent, _, _ in row]) for row in rows]
    took = [np.array([done - sent for _, sent, _, done in row]) for row in rows]
    usual = float(np.median(np.concatenate(took)))
    late = [np.where(each > usual + HELD_UP_NS, each - usual, 0.0) for each in took]
    return Truth(
        gaps_ms=np.concatenate([np.diff(times) for times in sends]) / 1e6,
        itl_p99_ms=(
            _p99_ms(np.diff(times) - held[:-1] for times, held in zip(sends, late, strict=True)),
            _p99_ms(np.diff(times) + held[1:] for times, held in zip(sends, late, strict=True)),
        ),
        ttft_s=np.array([(row[0][1] - row[0][2]) / 1e9 for row in rows]),
        tokens=sum(row[-1][0] for row in rows),
        events=len(lines),
        requests=len(rows),
        duration_s=(max(t[-1] for t in sends) - min(row[0][2] for row in rows)) / 1e9,
        decode_s=float(sum(times[-1] - times[0] for times in sends)) / 1e9,
        first_tokens=sum(row[0][0] for row in rows),
    )


def _p99_ms(gaps_ns: Iterable[np.typing.NDArray[np.float64]]) -> float:
    return float(np.percentile(np.concatenate(list(gaps_ns)), 99)) / 1e6


@dataclass(frozen=True, slots=True)
class Reading:
    """What a client under test reports; ``None`` where it reports no such thing."""

    cpu_us_per_chunk: float | None
    itl_p99_ms: float | None
    ttft_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class RawReading:
    """The raw reader's run; fewer reads than chunks would mean that it merged some."""

    cpu_us_per_read: float
    reads_per_chunk: float


def raw_reader(binary: Path, port: int, cpus: Sequence[int], streams: int, tokens: int) -> RawReading:
    """The floor: a C program that receives with the kernel's stamp and reads the clock."""
    done = subprocess.run(
        [binary, str(port), str(streams), str(tokens)],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    found = json.loads(done.stdout)
    return RawReading(found["cpu_s"] / found["reads"] * 1e6, found["reads"] / (streams * tokens))


@contextmanager
def busy_loops(count: int, cpus: Sequence[int]) -> Iterator[None]:
    """``count`` processes that do nothing but use ``cpus``."""
    loops = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", "while True: pass"],
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
