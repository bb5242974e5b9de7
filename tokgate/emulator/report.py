"""What a scheduler tells about its passes: batch log lines, counters, its share of `/server_info`."""

from __future__ import annotations

import time
from typing import Any

from tokgate.emulator import log_lines, server_args
from tokgate.emulator.counters import Counters
from tokgate.emulator.log_lines import Log
from tokgate.emulator.sequence import Sequence
from tokgate.emulator.settings import Settings

WEIGHT_GB = 2.07
GB_PER_TOKEN = 30.52e-6
# SGLang redefined the rate here: 2.8 tokens at 3 steps were 0.70 before, 0.60 since.
NEW_ACCEPT_RATE = 11


class Report:
    """Bookkeeping of one scheduler.

    Args:
        settings: of the server.
        counters: shared with the HTTP process.
    """

    def __init__(self, settings: Settings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._log = Log(0 if settings.ranks > 1 else None)
        self._capacity = server_args.kv_tokens(settings.args)
        self._interval: int = settings.args["decode_log_interval"]
        replays = settings.args["emulated_decode_graphs"] and "not-replayed" not in settings.faults
        self._largest = max(settings.args["emulated_capture_sizes"]) if replays else 0
        self._last_prefill = self._last_decode = time.monotonic()
        self._steps = self._tokens = self._passes = 0
        self._all_tokens = self._all_passes = 0
        self._throughput = 0.0
        self._accept_length: float | None = None

    def replayed(self, batch: int) -> bool:
        """Whether a batch of that size runs from a captured graph: larger ones than captured do not."""
        return batch <= self._largest

    def queue(self, running: int, waiting: int) -> None:
        """Sizes of the running batch and the queue."""
        self._counters["running"] = running
        self._counters["queued"] = waiting

    def prefill(
        self, begin: float, count: int, new: int, cached: int, running: list[Sequence], waiting: int
    ) -> None:
        """A prefill of ``count`` requests begins; ``new`` tokens are computed, ``cached`` are not."""
        rate = new / max(begin - self._last_prefill, 1e-6)
        self._log.line(
            log_lines.prefill_batch(
                self._settings.graph_word,
                count,
                new,
                cached,
                self._usage(running),
                len(running),
                waiting,
                rate,
            )
        )
        self._last_prefill = begin
        self._counters.add("prefill_none")
        self._counters.add("prefill_compute", new)
        self._counters.add("prefill_cache", cached)

    def decode(self, batch: list[Sequence], produced: int, waiting: int) -> None:
        """A decode step of ``batch`` has given ``produced`` tokens."""
        if not batch:
            return
        self._counters.add("decode_cuda_graph" if self.replayed(len(batch)) else "decode_none")
        self._counters.add("decode_tokens", produced)
        self._tokens += produced
        self._passes += len(batch)
        self._steps += 1
        if self._steps % self._interval == 0:
            self._log_decode(batch, waiting)

    def _log_decode(self, batch: list[Sequence], waiting: int) -> None:
        now = time.monotonic()
        # The first line after an idle time spans it, as SGLang's does.
        self._throughput = self._tokens / max(now - self._last_decode, 1e-9)
        accept = None
        if self._settings.speculative:
            self._all_tokens += self._tokens
            self._all_passes += self._passes
            self._accept_length = self._all_tokens / self._all_passes
            length = self._tokens / self._passes
            accept = (length, self._accept_rate(length))
            self._counters["accept_length"], self._counters["accept_rate"] = accept
        unfinished = [sequence for sequence in batch if not sequence.finished]
        self._log.line(
            log_lines.decode_batch(
                self._settings.graph_word,
                len(batch),
                sum(sequence.length for sequence in unfinished),
                self._usage(unfinished),
                accept,
                self.replayed(len(batch)),
                self._throughput,
                waiting,
            )
        )
        self._counters["gen_throughput"] = self._throughput
        self._counters.add("decode_tokens_logged", self._tokens)
        self._last_decode = now
        self._tokens = self._passes = 0

    def _accept_rate(self, length: float) -> float:
        args = self._settings.args
        if self._settings.patch < NEW_ACCEPT_RATE:
            return float(length / args["speculative_num_draft_tokens"])
        return float((length - 1) / args["speculative_num_steps"])

    def flush(self) -> None:
        """`/flush_cache` resets what is known of acceptance."""
        self._all_tokens = self._all_passes = 0
        self._accept_length = None

    def state(self, graph_gb: float) -> dict[str, Any]:
        """What `/server_info` shows of the scheduler; the accept length is absent until a step was logged."""
        state: dict[str, Any] = {
            "last_gen_throughput": self._throughput,
            "memory_usage": {
                "weight": WEIGHT_GB,
                "kvcache": round(self._capacity * GB_PER_TOKEN, 2),
                "token_capacity": self._capacity,
                "graph": round(graph_gb, 2),
            },
        }
        if self._accept_length is not None:
            state["avg_spec_accept_length"] = self._accept_length
        return state

    def _usage(self, sequences: list[Sequence]) -> float:
        used = sum(sequence.length for sequence in sequences)
        self._counters["used_tokens"] = used
        return used / self._capacity
