"""Builders shared by tokgate's own tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tokgate.load.sample import Audit, Identity, Request, Sample, Void

# A shell starts background jobs with Ctrl-C ignored, nohup its command with SIGHUP, and every process below them
# inherits that: tests that send it would wait in vain. With a handler here, children begin with the default again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# Machines are shared: how long an example takes says nothing of the code. The same examples in every run: one that is
# found by chance would fail in whatever change is tested just then. TOKGATE_NEW_EXAMPLES=1 looks for others.
settings.register_profile(
    "shared",
    deadline=None,
    derandomize=os.environ.get("TOKGATE_NEW_EXAMPLES") != "1",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared")


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """A Sample with given metrics; any part of its identity can be set by name."""

    def make(
        metrics: Mapping[str, float], *, void: tuple[Void, ...] = (), outcome: str = "ok", **identity: Any
    ) -> Sample:
        facts: dict[str, Any] = {
            "engine": "emulated",
            "engine_name": "emulated-founding",
            "sglang_version": "0.5.15.post1",
            "host_class": "emulated-founding",
            "profile": "baseline",
            "profile_digest": "p1",
            "workload": "chat-bs1",
            "workload_digest": "w1",
            "model": "",
            "launch": "l1",
            "run": 0,
            "started_at": "2026-11-29T12:00:00+00:00",
        }
        request = Request(index=0, outcome=outcome, intended_s=0.0, completion_tokens=48)
        return Sample(
            identity=Identity(**{**facts, **identity}),
            requests=(request,),
            audit=Audit(stamp_tier="kernel"),
            metrics=dict(metrics),
            duration_s=0.6,
            void=void,
        )

    return make
