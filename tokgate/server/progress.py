"""What counts as progress of a start-up, and since when there was none.

Progress is new log text, bytes read, or growth of resident or GPU memory. CPU time is not: a hung NCCL
spins. Each gauge must grow by a smallest amount since the last progress, so that threads that poll /proc
or an idle server's heartbeat do not pass for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokgate.host import proc
from tokgate.host.proc import Process

MIB = 1 << 20
# Detection stays within 1.5 x the deadline.
STARVED_SHARE = 0.4
# Smallest growth since the last progress that counts.
STEPS: Mapping[str, float] = {
    "log_bytes": 1,
    "chunks": 1,
    "storage_bytes": 1 * MIB,
    "read_bytes": 16 * MIB,
    "rss_bytes": 4 * MIB,
    "gpu_mib": 2,
    "own_gpu_mib": 2,
}


class Progress:
    """Gauges that only grow, and when one last did.

    Attributes:
        last_s, last_gauge: the last progress, and in what.
        starved_s: of the time since, how long the supervisor could not run.
    """

    def __init__(self, now_s: float) -> None:
        self.last_s = now_s
        self.last_gauge = "start"
        self.starved_s = 0.0
        self._marks: dict[str, float] = {}
        self._peaks: dict[str, float] = {}

    def reading(self, gauge: str, value: float, now_s: float) -> None:
        """Take one reading. Values below the highest seen so far change nothing."""
        peak = self._peaks[gauge] = max(value, self._peaks.get(gauge, value))
        if gauge not in self._marks:
            self._marks[gauge] = peak if STEPS[gauge] > 1 else 0
        if peak - self._marks[gauge] >= STEPS[gauge]:
            self.touch(gauge, now_s)

    def touch(self, gauge: str, now_s: float) -> None:
        """There was progress: all gauges count from here."""
        self.last_s, self.last_gauge, self.starved_s = now_s, gauge, 0.0
        self._marks.update(self._peaks)

    def waited_s(self, now_s: float) -> float:
        """Seconds without progress."""
        return now_s - self.last_s

    def starve(self, seconds: float) -> None:
        """The supervisor itself could not run for so long: neither, probably, could the engine."""
        self.starved_s += seconds

    def is_over(self, now_s: float, limit_s: float) -> bool:
        """Whether the deadline has passed. Starvation extends it, by at most two fifths of it."""
        return self.waited_s(now_s) - min(self.starved_s, STARVED_SHARE * limit_s) >= limit_s


class MemberGauges:
    """Bytes read and peak memory over the processes of a launch, dead ones included."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[int, int], float]] = {
            "storage_bytes": {},
            "read_bytes": {},
            "rss_bytes": {},
        }

    def take(self, members: Iterable[Process], progress: Progress, now_s: float) -> None:
        """Read every member and pass the sums on."""
        for member in members:
            key = (member.pid, member.start_ticks)
            if (io := proc.io(member.pid)) is not None:
                self._raise("storage_bytes", key, io.read_bytes)
                self._raise("read_bytes", key, io.rchar)
            if (rss := proc.rss_bytes(member.pid)) is not None:
                self._raise("rss_bytes", key, rss)
        for gauge, values in self._values.items():
            progress.reading(gauge, sum(values.values()), now_s)

    def _raise(self, gauge: str, key: tuple[int, int], value: float) -> None:
        values = self._values[gauge]
        values[key] = max(value, values.get(key, 0))
