"""Stored Samples for the tests of the analysis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokgate.load.sample import Audit, Identity, Request, Sample


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """A Sample with the given metrics; keyword arguments reach its parts."""

    def make(
        value: float = 900.0,
        *,
        launch: str = "a",
        run: int = 0,
        metric: str = "output_tok_s",
        identity: dict | None = None,
        audit: dict | None = None,
        requests: tuple[Request, ...] | None = None,
        started_at: str = "2026-01-05T10:00:00+00:00",
        **parts,
    ) -> Sample:
        who = {
            "engine": "gpu",
            "engine_name": "sglang",
            "sglang_version": "0.5.15.post1",
            "host_class": "nvidia-h200",
            "profile": "baseline",
            "profile_digest": "p",
            "workload": "chat-bs1",
            "workload_digest": "w",
            "model": "m",
            "launch": launch,
            "run": run,
            "started_at": started_at,
        } | (identity or {})
        asked = {
            "metrics": {metric: value, "step_ms_p50": 1.1},
            "duration_s": 2.0,
            "contention": {
                "interval_s": 2.0,
                "scheduler_run_delay_s": 0.001,
                "steal_s": 0.0,
                "gpu_power_throttle_s": 0.0,
                "gpu_thermal_throttle_s": 0.0,
                "foreign_gpu_processes": 0.0,
                "scheduler_cpu_slowdown": 1.0,
                "gpu_busy_share": 1.0,
            },
        } | parts
        good = Request(0, "ok", 0.0, prompt_tokens=8, completion_tokens=64, cached_tokens=0)
        return Sample(
            Identity(**who),
            (good,) if requests is None else requests,
            Audit("kernel", **({"lag_p99_s": 2e-5} | (audit or {}))),
            **asked,
        )

    return make
