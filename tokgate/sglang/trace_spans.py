"""SGLang's own marks in a profiler trace: which span on the CPU belongs to which part of a step.

Read from the wheels: from 0.5.15 ``draft`` and ``draft_extend`` are spans of their own and ``scheduler.run_batch``
is one a step; from 0.5.13 every forward pass is ``step[MODE bs=n]``, from 0.5.23 at the latest with VERIFY for the
target's and DRAFT for any of the draft's, which the spans around it tell apart. Before that only Python frames tell
(``with_stack``), whose functions have kept their names since 0.5.5.
"""

from __future__ import annotations

import re

VERIFY, DECODE, DRAFT, DRAFT_EXTEND, PREFILL, STEP = (
    "verify",
    "decode",
    "draft",
    "draft extend",
    "prefill",
    "step",
)
"""Labels of spans. ``step`` is a whole step of the scheduler, ``decode`` a pass of the model in mode DECODE."""

SPANS_SINCE = 15
"""First patch release of 0.5 whose spans tell all parts: before it a trace needs Python frames."""

_ANNOTATIONS = {
    "draft": DRAFT,
    "draft_extend": DRAFT_EXTEND,
    "verify": VERIFY,
    "scheduler.run_batch": STEP,
    "run_batch": STEP,
}
_PASS = re.compile(r"step\[([A-Z0-9_]+)")
_FRAME = re.compile(r"(?:^|/)(eagle_worker(?:_v2)?|scheduler)\.py\(\d+\): (\w+)$")
_FRAMES = {
    ("scheduler", "run_batch"): STEP,
    ("eagle_worker", "draft"): DRAFT,
    ("eagle_worker", "verify"): VERIFY,
    ("eagle_worker", "forward_draft_extend_after_decode"): DRAFT_EXTEND,
    ("eagle_worker_v2", "draft"): DRAFT,
    ("eagle_worker_v2", "verify"): VERIFY,
    ("eagle_worker_v2", "_draft_extend_for_decode"): DRAFT_EXTEND,
}
_COMMUNICATION = re.compile(
    r"nccl|all_?reduce|all_?gather|cross_device_reduce|reduce_?scatter", re.IGNORECASE
)


def label(category: str, name: str) -> str | None:
    """What a span is called here; ``None`` when it tells nothing of a step's parts."""
    if category == "python_function":
        # This runs for every frame of a trace, and few of them are of these files.
        if "eagle_worker" not in name and "scheduler.py" not in name:
            return None
        frame = _FRAME.search(name)
        return None if frame is None else _FRAMES.get((frame[1], frame[2]))
    if (found := _ANNOTATIONS.get(name)) is not None:
        return found
    mode = _PASS.match(name)
    if mode is None:
        return None
    if mode[1] in ("TARGET_VERIFY", "VERIFY"):
        return VERIFY
    if mode[1].startswith("DRAFT_EXTEND"):
        return DRAFT_EXTEND
    return {"DECODE": DECODE, "EXTEND": PREFILL, "MIXED": PREFILL, "SPLIT_PREFILL": PREFILL}.get(mode[1])


def is_communication(kernel: str) -> bool:
    """Whether a kernel exchanges data between GPUs: NCCL's, or SGLang's own all-reduce."""
    return _COMMUNICATION.search(kernel) is not None
