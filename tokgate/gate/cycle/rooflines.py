"""Rooflines of a run: the memory's bandwidth, measured once, and what each profile's model must read."""

from __future__ import annotations

from pathlib import Path

from tokgate.analysis.roofline import roofline
from tokgate.config.engine import Engine
from tokgate.config.workloads import Workload
from tokgate.gate.start import Starter
from tokgate.gate.visit import Visit
from tokgate.models.traffic import traffic
from tokgate.report.explain_trace import roofline_line, target_ms
from tokgate.server.bandwidth import Bandwidth, measure_bandwidth


class Rooflines:
    """Holds traced steps against the floor that memory sets.

    Args:
        engine: in whose Python the bandwidth is measured.
        starter: knows which model a profile serves.
    """

    def __init__(self, engine: Engine, starter: Starter) -> None:
        self._engine = engine
        self._starter = starter
        self._bandwidth: Bandwidth | None = None

    def lines(self, visit: Visit, workload: Workload) -> list[str]:
        """The target's pass against its floor; or why there is none, in words."""
        found = visit.traced(workload).cycles
        if found is None or self._engine.kind != "gpu":
            return []
        if self._bandwidth is None:
            self._bandwidth = measure_bandwidth(self._engine)
        if self._bandwidth.bytes_s is None:
            return [f"roofline: not known: {self._bandwidth.why}"]
        served = self._starter.served(visit.profile)
        read = traffic(served.on_disk[0] or Path(served.target), visit.profile.tp)
        if isinstance(read, str):
            return [f"roofline: not known: {read}"]
        # The trace shows the first steps of a request: its context is the prompt and a few tokens.
        floor = roofline(
            read,
            step_ms=target_ms(found),
            context_tokens=workload.prompts.length_tokens,
            requests=workload.concurrency,
            bandwidth_bytes_s=self._bandwidth.bytes_s,
        )
        return [f"roofline: {roofline_line(floor, found.anchor)}"]
