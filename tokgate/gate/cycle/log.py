"""The cycle that the engine's own log tells of a run: its decode lines that lie wholly within the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tokgate.report.explain_model import Explainer
from tokgate.sglang.log_scan import BLOCK_BYTES, scan

CYCLE_MS, LINES = "log_cycle_ms", "log_decode_lines"


class LogMark:
    """Where a log ends now, so that what is written from here on can be read later.

    Args:
        path: of a server's log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size if path.is_file() else 0

    def read(self, streams: int) -> dict[str, float]:
        """The mean cycle (without speculation: step) of the decode lines since, as
        :attr:`tokgate.load.sample.Sample.counters` keeps it.

        A line spans the steps since the one before (40, as SGLang is shipped). Lines that also span idle time,
        and those with another number of requests than the workload's streams, are left out.

        Returns:
            Empty when there is none, or the log cannot be read; else ``log_cycle_ms`` and
            ``log_decode_lines``, how many lines it is the mean of.
        """
        explainer = Explainer(self._path.name)
        try:
            with self._path.open("rb") as file:
                file.seek(self._from)
                explainer.take(scan(iter(lambda: file.read(BLOCK_BYTES), b"")))
        except OSError:
            return {}
        _, series = explainer.result()
        if not len(series):
            return {}
        wanted = (series.rank == series.rank[0]) & (series.running == streams) & (series.rate_tok_s > 0)
        if not wanted.any():
            return {}
        length = np.nan_to_num(series.accept_length[wanted].astype(np.float64), nan=1.0)
        cycles_ms = 1e3 * length * streams / series.rate_tok_s[wanted]
        return {CYCLE_MS: float(cycles_ms.mean()), LINES: float(len(cycles_ms))}
