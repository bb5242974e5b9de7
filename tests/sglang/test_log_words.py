"""The quick look at a message says what every pattern in turn says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokgate.sglang.log_words import BENIGN, FATAL, HINTS, KEYWORDS, classify, judge

SAMPLES = Path(__file__).parent / "samples"
HEADER = re.compile(rb"\[[\d\- :]+\] ")


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*/*.log")), ids=lambda path: path.stem)
def test_no_real_message_is_missed(path: Path) -> None:
    messages = [HEADER.sub(b"", line) for line in re.split(rb"[\r\n]", path.read_bytes()) if len(line) < 2048]
    assert len(messages) > 50
    assert [message for message in messages if classify(message) != judge(message)] == []


@pytest.mark.parametrize(
    "message",
    [
        b"Scheduler hit an exception: x",
        b"Fatal Python error: Aborted",
        b"terminate called after",
        b"Not enough memory. Please",
        b"SIGQUIT received. signum=None",
        b"SIGTERM received. signum=None",
        b"Gracefully exiting... Remaining number of requests 0",
        b"x reports ImportError with the following",
        b"resource_tracker: There appear to be 1 leaked semaphore objects to clean up",
        b"There appear to be 3 leaked shared_memory objects",
        b"Exception ignored in: <function x>",
        b"[rank0] This should dump the debug info",
        b"custom_ar is not used",
        b"speculative_num_draft_tokens is adjusted to speculative_num_steps + 1",
        b"The chunked prefill size is adjusted to 1 to avoid",
        b"The mixed chunked prefill are disabled because of",
        b"x is overridden to False because",
        b"Attention backend not explicitly specified. Use fa3 backend by default.",
        b"Spec v2 is enabled by default for eagle",
        b"Overlap scheduler is disabled because of using eagle",
        b"torch.OutOfMemoryError: CUDA out of memory",
    ],
)
def test_no_known_message_is_missed(message: bytes) -> None:
    assert judge(message) is not None
    assert classify(message) == judge(message)


def test_uninteresting_lines_need_no_pattern() -> None:
    for line in (
        b"Tree cache initialized: source=default",
        b"Memory pool end. avail",
        b"New client connected",
    ):
        assert judge(line) is None
    assert not any(word in b"new client connected: rid=abc123" for word in KEYWORDS)
    assert FATAL.search(b"x hit an exceptional") is None
    assert len(BENIGN) > 10 and len(HINTS) > 5
