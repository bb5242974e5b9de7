"""How a run ends before it is over: why, and with what was measured up to then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tokgate.errors import LoadFault
from tokgate.load.measurement import Measurement
from tokgate.load.sample import Void


class CutShort(LoadFault):
    """A run that did not come to its end. What it measured is not lost, and is void.

    Attributes:
        how: ``stalled``, ``interrupted``, ``server_lost`` or ``client_lost``; also the cause of its void reason.
        measurement: what was recorded up to then.
        void: why it does not count.
    """

    how: ClassVar[str]

    def __init__(
        self, headline: str, details: Sequence[str], measurement: Measurement, void: tuple[float, float, str]
    ) -> None:
        super().__init__(headline, details)
        self.measurement = measurement
        measured, bound, unit = void
        self.void = Void(self.how, measured, bound, unit, headline)


class Stall(CutShort):
    """A server that stopped answering: a deadline of the run passed.

    Args:
        phase: ``first token``, ``stream``, ``request`` or ``drain``.
        waited_s: seconds without what the phase waits for.
        limit_s: the deadline.
        measurement: what was recorded up to then.
    """

    how = "stalled"

    def __init__(self, phase: str, waited_s: float, limit_s: float, measurement: Measurement) -> None:
        super().__init__(
            f"the server stopped answering: {phase}: nothing for {waited_s:.1f} s (limit {limit_s:g} s)",
            [_account(measurement, len(measurement.requests))],
            measurement,
            (waited_s, limit_s, "s"),
        )
        self.phase = phase
        self.waited_s = waited_s
        self.limit_s = limit_s


class Interrupted(CutShort):
    """A run that its caller ended.

    Args:
        why: in the caller's words, such as ``ended by SIGINT``.
        measurement: what was recorded up to then.
        total: requests of the run.
    """

    how = "interrupted"

    def __init__(self, why: str, measurement: Measurement, total: int) -> None:
        left = float(total - _answered(measurement))
        super().__init__(why, [_account(measurement, total)], measurement, (left, 0, "requests"))


class ServerLost(CutShort):
    """A run whose server went away: its last request failed, and no connection is taken any more.

    Args:
        measurement: what was recorded, every request with its outcome.
    """

    how = "server_lost"

    def __init__(self, measurement: Measurement) -> None:
        total = len(measurement.requests)
        super().__init__(
            "the server went away: it takes no connections any more",
            [_account(measurement, total)],
            measurement,
            (float(total - _answered(measurement)), 0, "requests"),
        )


class ClientLost(CutShort):
    """A run whose client lost a worker process, and with it what that had measured.

    Args:
        fault: what befell it.
        measurement: of the other workers.
        total: requests of the run.
    """

    how = "client_lost"

    def __init__(self, fault: LoadFault, measurement: Measurement, total: int) -> None:
        lost = total - len(measurement.requests)
        account = f"of {lost} of {total} requests nothing is known" if lost else _account(measurement, total)
        super().__init__(fault.headline, [*fault.details, account], measurement, (float(lost), 0, "requests"))


def _answered(measurement: Measurement) -> int:
    return sum(r.outcome in ("ok", "short") for r in measurement.requests)


def _account(measurement: Measurement, total: int) -> str:
    """How many requests were answered, and what became of the others."""
    found = [f"{_answered(measurement)} of {total} requests were answered"]
    outcomes = [r.outcome for r in measurement.requests]
    first = ("stalled", "interrupted", "unsent")
    for outcome in (*first, *sorted({*outcomes} - {*first, "ok", "short"})):
        if outcome in outcomes:
            found.append(f"{outcomes.count(outcome)} {outcome}")
    return ", ".join(found)
