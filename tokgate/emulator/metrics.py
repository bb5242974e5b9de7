"""`/metrics` in prometheus' text form, with SGLang's names and labels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from tokgate.emulator.counters import Counters

TTFT_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E_BUCKETS = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    2,
    4,
    6,
    8,
    10,
    20,
    40,
    60,
    80,
    100,
    200,
    400,
    600,
    1200,
    1800,
    2400,
)
ITL_BUCKETS = (
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080, 0.1, 0.2,
    0.4, 0.6, 0.8, 1, 2, 4, 6, 8,
)  # fmt: skip


class Histogram:
    """Cumulative buckets of one quantity in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def add(self, value: float, times: int = 1) -> None:
        """Observe a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.count += times


class Metrics:
    """What `/metrics` tells.

    Args:
        counters: the scheduler's, in shared memory.
        model: label.
        capacity: tokens of the KV cache.
        context: context length.
        steps: draft steps, 0 without speculation.
        draft_tokens: tokens verified a pass.
        hidden: leave the graph and speculation counters out (fault ``missing-metrics``).
    """

    def __init__(
        self,
        counters: Counters,
        *,
        model: str,
        capacity: int,
        context: int,
        steps: int,
        draft_tokens: int,
        hidden: bool,
    ) -> None:
        self._counters = counters
        self._capacity = capacity
        self._context = context
        self._steps = steps
        self._draft_tokens = draft_tokens
        self._hidden = hidden
        rank = 'moe_ep_rank="0"', f'model_name="{model}"', 'pp_rank="0"', 'tp_rank="0"'
        self._scheduler = ('engine_type="unified"', *rank)
        self._tokenizer = ('engine_type="unified"', f'model_name="{model}"')
        self.prompt_tokens = self.generation_tokens = self.requests = self.verify_calls = 0
        self.ttft, self.e2e = Histogram(TTFT_BUCKETS), Histogram(E2E_BUCKETS)
        self.itl = Histogram(ITL_BUCKETS)
        self.http: dict[tuple[str, str], int] = {}
        self.responses: dict[tuple[str, str, int], int] = {}

    def render(self) -> str:
        """The whole page."""
        lines: list[str] = []
        cells = self._counters
        for name, text, value in self._gauges():
            self._family(lines, name, text, "gauge", [((), value)])
        if not self._hidden:
            passes = [
                ((f'mode="{mode}"',), cells[mode])
                for mode in ("prefill_none", "decode_cuda_graph", "decode_none")
                if cells[mode]
            ]
            self._family(
                lines,
                "cuda_graph_passes_total",
                "Total number of forward passes categorized by CUDA graph.",
                "counter",
                passes,
            )
        modes = {"prefill_compute": "prefill_compute", "prefill_cache": "prefill_cache"}
        modes["decode"] = "decode_tokens_logged"
        self._family(
            lines,
            "realtime_tokens_total",
            "Total number of tokens processed (updated on each log interval). "
            "mode: prefill_compute, prefill_cache, decode.",
            "counter",
            [((f'mode="{mode}"',), cells[cell]) for mode, cell in modes.items() if cells[cell]],
        )
        self._http(lines)
        counters: list[tuple[str, str, int]] = [
            ("prompt_tokens_total", "Number of prefill tokens processed.", self.prompt_tokens),
            ("generation_tokens_total", "Number of generation tokens processed.", self.generation_tokens),
            ("num_requests_total", "Number of requests processed.", self.requests),
        ]
        if self._steps and not self._hidden:
            text = "Number of speculative decoding verification calls."
            counters.insert(2, ("spec_verify_calls_total", text, self.verify_calls))
        for name, text, value in counters:
            if value:
                self._family(lines, name, text, "counter", [((), value)], self._tokenizer)
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", self.ttft),
            ("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", self.e2e),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", self.itl),
        ):
            self._histogram(lines, name, text, histogram)
        return "\n".join(lines) + "\n"

    def _gauges(self) -> list[tuple[str, str, float]]:
        cells = self._counters
        used = cells["used_tokens"]
        found: list[tuple[str, str, float]] = [
            ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", self._capacity),
            ("page_size", "KV cache page size in tokens.", 1),
            ("num_pages", "Number of KV cache pages.", self._capacity),
            ("context_len", "Maximum context length.", self._context),
            ("num_running_reqs", "The number of running requests.", cells["running"]),
            ("num_queue_reqs", "The number of requests in the waiting queue.", cells["queued"]),
            ("gen_throughput", "The generation throughput (token/s).", cells["gen_throughput"]),
            ("cache_hit_rate", "The prefix cache hit rate.", self._hit_rate()),
            ("token_usage", "The token usage.", round(used / self._capacity, 2)),
            ("num_used_tokens", "The number of used tokens.", used),
            (
                "kv_available_tokens",
                "Number of free token slots in the KV cache pool.",
                self._capacity - used,
            ),
            ("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", used),
        ]
        if self._steps and not self._hidden:
            found += [
                (
                    "spec_accept_length",
                    "Mean acceptance length of speculative decoding "
                    "(accepted drafts + bonus token per forward).",
                    cells["accept_length"],
                ),
                (
                    "spec_accept_rate",
                    "Speculative acceptance rate (`accepted drafts / proposed drafts` in batch).",
                    cells["accept_rate"],
                ),
                ("spec_num_steps", "Currently active speculative_num_steps.", self._steps),
                (
                    "spec_num_draft_tokens",
                    "Currently active speculative_num_draft_tokens (decouples from steps under topk>1).",
                    self._draft_tokens,
                ),
            ]
        # As in SGLang, this one stays 0 whatever happens.
        found.append(("is_cuda_graph", "Whether the batch is using CUDA graph.", 0))
        return found

    def _hit_rate(self) -> float:
        cached, computed = self._counters["prefill_cache"], self._counters["prefill_compute"]
        return cached / (cached + computed) if cached else 0.0

    def _family(
        self,
        lines: list[str],
        name: str,
        text: str,
        kind: str,
        samples: Sequence[tuple[tuple[str, ...], float]],
        labels: tuple[str, ...] | None = None,
    ) -> None:
        if not samples:
            return
        lines += [f"# HELP sglang:{name} {text}", f"# TYPE sglang:{name} {kind}"]
        for extra, value in samples:
            shown = ",".join(sorted((*(self._scheduler if labels is None else labels), *extra)))
            lines.append(f"sglang:{name}{{{shown}}} {float(value)!r}")

    def _histogram(self, lines: list[str], name: str, text: str, histogram: Histogram) -> None:
        if not histogram.count:
            return
        labels = ",".join(self._tokenizer)
        lines += [f"# HELP sglang:{name} {text}", f"# TYPE sglang:{name} histogram"]
        lines.append(f"sglang:{name}_sum{{{labels}}} {histogram.total!r}")
        running = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            running += count
            shown = "+Inf" if bound == float("inf") else repr(float(bound))
            label = ",".join(sorted((*self._tokenizer, f'le="{shown}"')))
            lines.append(f"sglang:{name}_bucket{{{label}}} {float(running)!r}")
        lines.append(f"sglang:{name}_count{{{labels}}} {float(histogram.count)!r}")

    def _http(self, lines: list[str]) -> None:
        lines.append("# HELP sglang:http_requests_total Total number of HTTP requests by endpoint and method")
        lines.append("# TYPE sglang:http_requests_total counter")
        lines += [
            f'sglang:http_requests_total{{endpoint="{path}",method="{method}"}} {float(count)!r}'
            for (path, method), count in self.http.items()
        ]
        lines.append(
            "# HELP sglang:http_responses_total Total number of HTTP responses by endpoint and status code"
        )
        lines.append("# TYPE sglang:http_responses_total counter")
        lines += [
            f'sglang:http_responses_total{{endpoint="{path}",method="{method}",status_code="{status}"}} '
            f"{float(count)!r}"
            for (path, method, status), count in self.responses.items()
        ]

    def count_request(self, path: str, method: str) -> None:
        """A request arrived."""
        self.http[path, method] = self.http.get((path, method), 0) + 1

    def count_response(self, path: str, method: str, status: int) -> None:
        """A response was begun."""
        key = path, method, status
        self.responses[key] = self.responses.get(key, 0) + 1

    def count_generation(self, generation: Any) -> None:
        """A generation has finished."""
        self.requests += 1
        self.prompt_tokens += len(generation.prompt)
        self.generation_tokens += generation.completion_tokens
        self.verify_calls += generation.verify_count
        self.ttft.add(generation.first_token_s)
        self.e2e.add(generation.latency_s)
        gaps = generation.completion_tokens - 1
        if gaps > 0:
            self.itl.add((generation.latency_s - generation.first_token_s) / gaps, gaps)
