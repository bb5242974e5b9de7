"""Launches a server and follows it until it gives real tokens, or says why it does not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from tokgate.errors import EngineFault
from tokgate.host import marker, proc
from tokgate.server import faults, probe, reaper, wording
from tokgate.server.group import Death, ProcessGroup
from tokgate.server.ledger import GpuLedger
from tokgate.server.logtail import LogTail
from tokgate.server.progress import MemberGauges, Progress
from tokgate.server.running import Server
from tokgate.server.spec import LaunchSpec, check, port_taken, room_left, unwritable
from tokgate.server.teardown import tear_down
from tokgate.server.timeline import CAPTURE, FIRST_TOKEN, IMPORTS, SPAWN, WARMUP, Timeline, label
from tokgate.sglang.log import LogReader, is_fatal

POLL_S = 0.03
_GAUGES_S = 0.25
_INFO_S = 5.0
_ANSWER_S = 0.5
_DEATH_SHOWS_S = 2.0
_LATE_S = 0.1

__all__ = ["LaunchSpec", "Server", "start"]


def start(spec: LaunchSpec, on_phase: Callable[[str], None] | None = None) -> Server:
    """Launch a server and wait until it is ready: it answered, and generated as many tokens as were asked.

    SGLang's ``/health`` is itself a one-token generation that never answers in under a second, so the
    generation takes its place; ``/health`` is asked only when the generation fails, to tell the two apart.

    Args:
        on_phase: called with the name of each phase when it begins.

    Raises:
        Hang: a phase made no progress within its deadline.
        Exited: the engine, or one of its workers, died.
        EngineFault: it answered the first generation wrongly.
        PortTaken, InterpreterMissing, ModelMissing, ResultsUnwritable: the host is not fit.

    Nothing is left running when this raises, whatever it raises.
    """
    check(spec)
    mark = uuid.uuid4().hex
    ledger = GpuLedger.open(spec.engine.kind, spec.env, spec.profile.tp)
    group: ProcessGroup | None = None
    try:
        ledger.begin()
        reaper.watch(mark)
        group = ProcessGroup.spawn(spec.argv, spec.env, spec.log_path, mark)
        return _Startup(spec, group, ledger, on_phase).follow()
    except BaseException as error:
        if group is not None:
            teardown = tear_down(group, host=spec.host, port=spec.port, grace_s=0.0, ledger=ledger)
            if isinstance(error, EngineFault):
                error.details += teardown.told
        else:
            marker.kill(mark)
            reaper.forget(mark)
            ledger.end()
        raise


class _Startup:
    """One start-up being followed."""

    def __init__(
        self,
        spec: LaunchSpec,
        group: ProcessGroup,
        ledger: GpuLedger,
        on_phase: Callable[[str], None] | None,
    ) -> None:
        self._spec = spec
        self._group = group
        self._ledger = ledger
        self._on_phase = on_phase
        self._timeline = Timeline(group.started_s)
        self._progress = Progress(group.started_s)
        self._gauges = MemberGauges()
        self._next_gauges_s = 0.0
        self._announced = ""
        self._fatal_s: float | None = None
        self._request: probe.FirstRequest | None = None
        self._tail = LogTail(spec.log_path)
        self._reader = LogReader()

    def follow(self) -> Server:
        """Until the first generation has come."""
        try:
            self._announce()
            while not self._step():
                self._wait()
            return self._server()
        finally:
            if self._request is not None:
                self._request.close()
            self._tail.close()

    def _wait(self) -> None:
        began = time.monotonic()
        self._group.wait(POLL_S)
        # What overran the wait alone: a step of ours may itself have waited for an answer.
        if (late_s := time.monotonic() - began - POLL_S) > _LATE_S:
            self._progress.starve(late_s)

    def _step(self) -> bool:
        self._read_log()
        now = time.monotonic()
        if now >= self._next_gauges_s:
            self._read_gauges(now)
        if (death := self._group.death()) is not None:
            raise self._died(death)
        if self._fatal_s is not None and now - self._fatal_s > _DEATH_SHOWS_S:
            raise self._died(None)
        if self._request is None:
            self._ask_if_ready(now)
        elif self._request.state.finished:
            if self._request.state.fault:
                self._failed(self._request.state.fault)
            return True
        else:
            self._progress.reading("chunks", self._request.state.chunks, now)
        limit_s = self._spec.limit_s(self._timeline.phase)
        if self._progress.is_over(now, limit_s):
            raise self._hang(self._progress.waited_s(now), limit_s)
        return False

    def _read_log(self) -> None:
        events = self._reader.feed(self._tail.read())
        now = time.monotonic()
        if self._timeline.phase == SPAWN and self._tail.fresh_bytes:
            self._timeline.enter(IMPORTS, now)
            self._announce()
        for event in events:
            self._timeline.take(event, now)
            self._announce()
            if self._fatal_s is None and is_fatal(event):
                self._fatal_s = now
        self._progress.reading("log_bytes", self._tail.fresh_bytes, now)

    def _read_gauges(self, now: float) -> None:
        members = self._group.members()
        self._gauges.take(members, self._progress, now)
        held = self._ledger.held([process.pid for process in members])
        if held is not None and held.gauge is not None:
            self._progress.reading(*held.gauge, now)
        if not room_left(self._spec.log_path):
            raise unwritable(self._spec.log_path, "No space left on device")
        # On a host with thousands of processes one look takes long: never spend over a tenth of the time.
        self._next_gauges_s = now + max(_GAUGES_S, 10 * (time.monotonic() - now))

    def _ask_if_ready(self, now: float) -> None:
        if self._timeline.is_ready:
            self._timeline.enter(FIRST_TOKEN, now)
            self._progress.touch("chunks", now)
            self._announce()
        elif self._timeline.phase != WARMUP or not self._answers_though_not_ready(now):
            return
        self._check_listener()
        self._request = probe.FirstRequest(self._spec.host, self._spec.port)

    def _answers_though_not_ready(self, now: float) -> bool:
        """Of a version whose ready line is not known: asked once it has been silent for half its time."""
        limit_s = self._spec.limit_s(WARMUP)
        if self._progress.waited_s(now) <= limit_s / 2:
            return False
        # Waiting for an answer delays the verdict, so it must be short beside the deadline.
        within_s = min(_ANSWER_S, limit_s / 10)
        return probe.get_json(self._spec.host, self._spec.port, "/model_info", within_s) is not None

    def _check_listener(self) -> None:
        inodes = proc.listeners(self._spec.port)
        if inodes and not proc.holders(inodes, self._group.members()):
            raise port_taken(self._spec)

    def _announce(self) -> None:
        if self._on_phase is not None and self._announced != self._timeline.phase:
            self._announced = self._timeline.phase
            self._on_phase(self._announced)

    def _words(self) -> str:
        phase = self._timeline.phase
        words = label(phase)
        if phase.startswith(CAPTURE):
            kind = phase.removeprefix(CAPTURE)
            if self._timeline.ended_ranks(kind):
                return f"{words} on {wording.ranks(self._timeline.open_ranks(kind))}"
        return words

    def _hang(self, waited_s: float, limit_s: float) -> EngineFault:
        phase = self._timeline.phase
        starved_s = self._progress.starved_s
        return faults.hang(
            self._spec,
            self._group,
            phase,
            self._words(),
            waited_s,
            limit_s,
            self._spec.usual_s.get(phase),
            timeline=self._timeline,
            serving=self._request is not None,
            starved_s=starved_s if starved_s > waited_s / 4 else 0.0,
        )

    def _died(self, death: Death | None) -> Exception:
        # What it wrote between our last look at the log and its end tells in which phase it was.
        self._read_log()
        lived_s = time.monotonic() - self._group.started_s
        return faults.exited(self._spec, death, self._words(), lived_s, self._group)

    def _failed(self, fault: str) -> None:
        until = time.monotonic() + _DEATH_SHOWS_S
        while time.monotonic() < until:
            self._group.members()
            if (death := self._group.death()) is not None:
                raise self._died(death)
            self._group.wait(0.05)
        self._check_listener()
        raise faults.wrong_answer(self._spec, label(FIRST_TOKEN), fault)

    def _server(self) -> Server:
        spec = self._spec
        phases = self._timeline.finish(time.monotonic())
        info = [probe.get_info(spec.host, spec.port, name, _INFO_S) for name in ("server_info", "model_info")]
        self._group.members()
        if (death := self._group.death()) is not None:
            raise self._died(death)
        return Server(
            spec,
            self._group,
            self._ledger,
            phases=phases,
            captures=self._timeline.captures,
            nccl_version=self._timeline.nccl_version,
            server_info=info[0],
            model_info=info[1],
        )
