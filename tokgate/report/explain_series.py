"""Decode statistics of one log, gathered block by block in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokgate.sglang.log_columns import Columns

MAX_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Series:
    """Decode lines that count: those right after idle are left out, since they span the idle time.

    Attributes:
        time_s: seconds since 1970 (whole: SGLang prints no fractions).
        stride: 1 when every line was kept, n when every n-th.
    """

    time_s: NDArray[np.float64]
    rank: NDArray[np.int32]
    running: NDArray[np.int32]
    rate_tok_s: NDArray[np.float32]
    accept_length: NDArray[np.float32]
    ranks: tuple[str, ...]
    stride: int = 1

    def __len__(self) -> int:
        return len(self.time_s)

    def of_rank(self, rank: str) -> NDArray[np.bool_]:
        """Which rows are of that rank."""
        return np.asarray(self.rank == self.ranks.index(rank), bool)


class SeriesBuilder:
    """Takes columns in order, drops idle lines, keeps at most :data:`MAX_ROWS` rows.

    A decode line is dropped when it is its rank's first, or when a prefill with nothing running came since
    the rank's decode line before: its interval then holds the time in which the engine waited.
    """

    def __init__(self) -> None:
        self.decode_lines = 0
        self.prefill_lines = 0
        self.idle_lines = 0
        self.graph_lines: dict[str, int] = {}
        self.cpu = False
        self._accept_sum, self._accept_lines = 0.0, 0
        self._ranks: list[str] = []
        self._woken: dict[int, bool] = {}
        self._parts: list[NDArray[np.float64]] = []
        self._rows = 0
        self._stride = 1
        self._offset = 0

    def add(self, columns: Columns) -> None:
        """Take one block's statistics lines."""
        index = np.array([self._rank(name) for name in columns.ranks])[columns.rank]
        decode = columns.decode
        self.decode_lines += int(decode.sum())
        self.prefill_lines += int((~decode).sum())
        self.cpu |= bool(columns.cpu_graph.any())
        for value, name in ((1, "graph"), (0, "eager"), (-1, "not said")):
            count = int((columns.graph[decode] == value).sum())
            if count:
                self.graph_lines[name] = self.graph_lines.get(name, 0) + count
        known = columns.accept_length[~np.isnan(columns.accept_length)]
        self._accept_sum, self._accept_lines = (
            self._accept_sum + float(known.sum()),
            self._accept_lines + len(known),
        )
        busy = np.zeros(len(columns), bool)
        for rank in np.unique(index):
            rows = np.flatnonzero(index == rank)
            busy[rows] = self._busy(int(rank), decode[rows], columns.running[rows])
        kept = decode & busy
        self.idle_lines += int((decode & ~busy).sum())
        table = np.column_stack(
            (
                columns.time_s[kept],
                index[kept],
                columns.running[kept],
                columns.rate_tok_s[kept],
                columns.accept_length[kept],
            )
        )
        self._keep(np.asarray(table, np.float64))

    @property
    def accept_length(self) -> float | None:
        """Mean over all decode lines: idle time does not touch it, and each line spans equally many steps."""
        return self._accept_sum / self._accept_lines if self._accept_lines else None

    def series(self) -> Series:
        """What was gathered."""
        table = np.concatenate(self._parts) if self._parts else np.empty((0, 5))
        return Series(
            time_s=table[:, 0],
            rank=table[:, 1].astype(np.int32),
            running=table[:, 2].astype(np.int32),
            rate_tok_s=table[:, 3].astype(np.float32),
            accept_length=table[:, 4].astype(np.float32),
            ranks=tuple(self._ranks),
            stride=self._stride,
        )

    def _rank(self, name: str) -> int:
        if name not in self._ranks:
            self._ranks.append(name)
        return self._ranks.index(name)

    def _busy(self, rank: int, decode: NDArray[np.bool_], running: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each row whether no idle time lies between it and the decode row before."""
        wakes = ~decode & (running == 0)
        count = np.cumsum(wakes)
        at = np.flatnonzero(decode)
        busy = np.zeros(len(decode), bool)
        if len(at):
            busy[at[1:]] = count[at[1:]] == count[at[:-1]]
            busy[at[0]] = count[at[0]] == 0 and not self._woken.get(rank, True)
            self._woken[rank] = bool(count[-1] > count[at[-1]])
        elif count[-1]:
            self._woken[rank] = True
        return busy

    def _keep(self, table: NDArray[np.float64]) -> None:
        first = -self._offset % self._stride
        self._offset = (self._offset + len(table)) % self._stride
        rows = table[first :: self._stride]
        if not len(rows):
            return
        self._parts.append(rows)
        self._rows += len(rows)
        while self._rows > MAX_ROWS:
            whole = np.concatenate(self._parts)[::2]
            self._parts, self._rows = [whole], len(whole)
            self._stride *= 2
            self._offset = 0
