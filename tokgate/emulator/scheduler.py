"""The scheduler process: continuous batching on an absolute schedule.

Each pass ends when the scenario says, counted from the end of the pass before it, so that late wake-ups
of a loaded machine do not add up.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import Any

from tokgate.emulator import server_args
from tokgate.emulator.acceptance import Acceptance, geometric_positions
from tokgate.emulator.channel import Channel
from tokgate.emulator.counters import Counters
from tokgate.emulator.fate import Fate
from tokgate.emulator.log_lines import Log
from tokgate.emulator.report import Report
from tokgate.emulator.sequence import PrefixCache, Sequence
from tokgate.emulator.settings import Settings
from tokgate.emulator.startup import SchedulerError, Startup
from tokgate.emulator.timing import Timing
from tokgate.emulator.trace import Tracer, launched_graphs

# A process that was stopped or starved for longer than this has really lost the time.
CATCH_UP_S = 0.25


class Scheduler:
    """Rank 0: runs batches, sends tokens to the detokenizer and answers to the HTTP process.

    Args:
        settings: of the server.
        startup: the finished start-up, for what it used.
        front: channel to the HTTP process.
        detokenizer: channel to the detokenizer.
        counters: shared with the HTTP process.
        barrier: waits for the other ranks, once a pass.
    """

    def __init__(
        self,
        settings: Settings,
        startup: Startup,
        front: Channel,
        detokenizer: Channel,
        counters: Counters,
        barrier: Any,
    ) -> None:
        self._settings = settings
        self._startup = startup
        self._front = front
        self._detokenizer = detokenizer
        self._report = Report(settings, counters)
        self._barrier = barrier
        self._log = Log(0 if settings.ranks > 1 else None)
        faults = settings.faults
        self._faults = faults
        self._fate = Fate(faults, self._log)
        self._timing = Timing(settings.plan, settings.launch_seed, faults.number("slow") or 1.0)
        self._acceptance = self._make_acceptance()
        self._limit = server_args.running_limit(settings.args)
        self._cache = PrefixCache(not settings.args["disable_radix_cache"])
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._prefilling: list[Sequence] = []
        self._silent: list[Sequence] = []
        self._tracer: Tracer | None = None
        self._requests = 0
        self._user_tokens = 0
        self._fresh_run = True
        self._last_user = float("-inf")
        self._pass_begin = self._pass_end = 0.0

    def _make_acceptance(self) -> Acceptance | None:
        if not self._settings.speculative:
            return None
        steps = self._settings.args["speculative_num_steps"]
        if "accept-one" in self._faults:
            return Acceptance([0.0] * steps)
        costs = self._settings.plan["costs"]
        if costs["acceptance"] is not None:
            positions = (costs["acceptance"] + [0.0] * steps)[:steps]
            return Acceptance(positions)
        return Acceptance(geometric_positions(costs["accept_length"], steps))

    # --- the loop -------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until the HTTP process is gone.

        Raises:
            SchedulerError: as planted by ``crash-first-replay``.
        """
        while not self._front.closed:
            busy = bool(self._prefilling or self._running)
            wait = max(0.0, self._pass_end - time.monotonic()) if busy else None
            readable, _, _ = select.select([self._front], [], [], wait)
            if readable:
                for message in self._front.receive():
                    getattr(self, f"_on_{message['type']}")(message)
            # Again, since an abort may just have taken the last request of the pass.
            busy = bool(self._prefilling or self._running)
            if busy and time.monotonic() >= self._pass_end:
                self._complete_pass()
                self._start_pass(self._pass_end)
            elif not busy:
                self._start_pass(time.monotonic())
        os._exit(0)

    def _start_pass(self, begin: float) -> None:
        """Prefill what waits, else decode what runs; does nothing when there is neither."""
        room = self._limit - len(self._running) - len(self._silent)
        budget = self._settings.args["max_prefill_tokens"]
        while self._waiting and room > 0 and (budget > 0 or not self._prefilling):
            sequence = self._waiting.popleft()
            sequence.cached = self._cache.match(sequence.prompt)
            if sequence.cached and sequence.user and "stale-prefix" in self._faults:
                sequence.spoil()
            budget -= len(sequence.prompt) - sequence.cached
            self._prefilling.append(sequence)
            room -= 1
        self._pass_begin = begin
        if self._prefilling:
            self._begin_prefill(begin)
        elif self._running:
            if "swap-requests" in self._faults:
                self._swap()
            self._pass_end = begin + self._timing.step_s(len(self._running))

    def _begin_prefill(self, begin: float) -> None:
        users = [sequence for sequence in self._prefilling if sequence.user]
        if users:
            idle = not any(sequence.user for sequence in self._running)
            gap = begin - self._last_user
            if self._fresh_run or (idle and gap > self._settings.plan["run_gap_s"]):
                self._timing.new_run()
                if self._acceptance:
                    self._acceptance.new_run()
                self._fresh_run = False
        new = sum(len(sequence.prompt) - sequence.cached for sequence in self._prefilling)
        cached = sum(sequence.cached for sequence in self._prefilling)
        self._report.prefill(begin, len(self._prefilling), new, cached, self._running, len(self._waiting))
        self._pass_end = begin + self._timing.prefill_s(new)

    def _complete_pass(self) -> None:
        prefill = bool(self._prefilling)
        if "crash-first-replay" in self._faults and not prefill:
            raise SchedulerError("CUDA error: an illegal memory access was encountered (planted fault)")
        self._barrier()
        batch = len(self._prefilling if prefill else self._running)
        replayed = self._report.replayed(batch)
        if self._tracer and self._tracer.add(prefill, replayed, batch, self._pass_begin, self._pass_end):
            self._stop_tracer()
        entries = self._first_tokens() if prefill else self._decode()
        if entries:
            self._detokenizer.send(entries)
        self._report.queue(len(self._running), len(self._waiting))
        now = time.monotonic()
        if now - self._pass_end > CATCH_UP_S:
            self._pass_end = now
        self._fate.after(self._user_tokens)

    def _first_tokens(self) -> list[Any]:
        entries = []
        for sequence in self._prefilling:
            if self._settings.speculative and self._acceptance:
                sequence.histogram = [0] * self._acceptance.most
                sequence.plan = self._acceptance.plan(sequence.max_new - 1)
            self._cache.add(sequence.prompt)
            if sequence.user and "generation-dead" in self._faults:
                self._silent.append(sequence)
                continue
            entries.append(self._emit(sequence, 1))
            if not sequence.finished:
                self._running.append(sequence)
        self._prefilling = []
        return entries

    def _decode(self) -> list[Any]:
        entries = []
        stall = self._faults.number("stall")
        produced = 0
        for sequence in self._running:
            if stall and sequence.user and sequence.produced >= stall:
                self._silent.append(sequence)
                continue
            count = 1
            if self._settings.speculative:
                count = sequence.plan[sequence.passes]
                sequence.passes += 1
                sequence.verify_count += 1
                sequence.histogram[count - 1] += 1
            entries.append(self._emit(sequence, count))
            produced += len(entries[-1][1])
        decoded = [sequence for sequence in self._running if sequence not in self._silent]
        self._report.decode(decoded, produced, len(self._waiting))
        self._running = [sequence for sequence in decoded if not sequence.finished]
        return entries

    def _emit(self, sequence: Sequence, count: int) -> tuple[str, list[int], str | None, dict[str, Any]]:
        first = sequence.produced == 0
        ids, logprobs = sequence.take(count)
        info: dict[str, Any] = {}
        if first:
            info["cached"] = sequence.cached
        if logprobs:
            info["logprobs"] = logprobs
        finish = None
        if sequence.finished:
            finish = "length"
            if self._settings.speculative:
                info["verify"] = (sequence.verify_count, sequence.histogram)
        if sequence.user:
            self._user_tokens += len(ids)
            self._last_user = self._pass_end
        return sequence.rid, ids, finish, info

    def _swap(self) -> None:
        free = [s for s in self._running if s.user and not s.partner]
        for left, right in zip(free[::2], free[1::2], strict=False):
            left.chain, right.chain = right.chain, left.chain
            left.partner = right.partner = True

    # --- messages from the HTTP process ---------------------------------------------------------

    def _reply(self, message: dict[str, Any], data: Any) -> None:
        self._front.send({"type": "reply", "token": message["token"], "data": data})

    def _on_generate(self, message: dict[str, Any]) -> None:
        self._requests += 1
        self._waiting.append(Sequence(message, self._faults, self._requests))

    def _on_abort(self, message: dict[str, Any]) -> None:
        rid = message["rid"]
        self._waiting = deque(s for s in self._waiting if s.rid != rid)
        self._running = [s for s in self._running if s.rid != rid]
        self._silent = [s for s in self._silent if s.rid != rid]
        self._prefilling = [s for s in self._prefilling if s.rid != rid]

    def _on_flush(self, message: dict[str, Any]) -> None:
        active = len(self._running) + len(self._prefilling) + len(self._silent)
        if active or self._waiting:
            self._log.line(
                "Cache not flushed because there are pending requests. "
                f"#queue-req: {len(self._waiting)}, #running-req: {active}"
            )
            self._reply(message, False)
            return
        self._cache.clear()
        self._fresh_run = True
        self._report.flush()
        self._log.line("Cache flushed successfully!")
        self._reply(message, True)

    def _on_state(self, message: dict[str, Any]) -> None:
        self._reply(message, self._report.state(self._startup.graph_gb))

    def _on_profile(self, message: dict[str, Any]) -> None:
        if self._tracer is not None:
            self._reply(message, "Profiling is already in progress. Call /stop_profile first.")
            return
        graphs = launched_graphs(self._settings)
        tracer = Tracer(
            message["output_dir"],
            message["num_steps"],
            0,
            self._timing.kernels_ms,
            graphs,
            self._settings.patch,
        )
        self._tracer = tracer
        self._log.line(
            f"Profiling starts. Traces will be saved to: {tracer.output_dir} "
            f"(with profile id: {tracer.profile_id})"
        )
        self._reply(message, None)

    def _on_stop_profile(self, message: dict[str, Any]) -> None:
        if self._tracer is None:
            self._reply(message, "Profiling is not in progress. Call /start_profile first.")
            return
        self._stop_tracer()
        self._reply(message, None)

    def _stop_tracer(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is None:
            return
        self._log.line("Stop profiling...")
        try:
            tracer.write()
        except OSError as error:
            self._log.line(f"Profile could not be written to {tracer.output_dir}: {error.strerror}")
            return
        self._log.line(f"Profiling done. Traces are saved to: {tracer.output_dir}")
