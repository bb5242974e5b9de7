"""The reader on what real logs do to their readers, each fault planted, each with its control."""

from __future__ import annotations

import codecs
import itertools
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokgate.sglang import log_events as ev
from tokgate.sglang.log import LogReader, is_fatal, phase_of, read_events
from tokgate.sglang.log_lines import MAX_LINE_BYTES

AT = b"[2026-11-29 12:00:00] "
SAMPLES = Path(__file__).parent / "samples"
MIXED = (
    (SAMPLES / "0.5.15.post1/died-after-capture-missing-module.log").read_bytes()
    + (SAMPLES / "0.5.13.post1/eagle3-graphs.log").read_bytes()[:30_000]
    + (SAMPLES / "0.5.23-cpu/eagle3.log").read_bytes()[-6_000:]
)
DECODE = (
    b"[2026-11-29 12:41:26 TP0] Decode batch, #running-req: 1, #token: 167, token usage: 0.00, "
    b"accept len: 3.10, accept rate: 0.70, cuda graph: True, "
    b"gen throughput (token/s): 842.97, #queue-req: 0\n"
)


def events(*chunks: bytes) -> list[ev.Event]:
    return list(read_events(chunks))


def one(raw: bytes) -> ev.Event:
    found = events(raw)
    assert len(found) == 1, found
    return found[0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(MIXED)), max_size=12))
def test_cut_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(MIXED)]
    chunks = [MIXED[begin:end] for begin, end in itertools.pairwise(edges)]
    assert events(*chunks) == events(MIXED)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_cut_evenly_gives_the_same_events(size: int) -> None:
    raw = MIXED[:20_000] if size == 1 else MIXED
    assert events(*(raw[at : at + size] for at in range(0, len(raw), size))) == events(raw)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_are_survived_and_do_not_hide_what_follows(noise: bytes, cut: int) -> None:
    raw = noise.replace(b"[", b"(") + b"\n" + DECODE
    found = events(raw[:cut], raw[cut:])
    assert found == events(raw)
    if not noise.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\x1b" not in noise:
        assert isinstance(found[-1], ev.DecodeBatch)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(DECODE) - 1))
def test_a_truncated_tail_never_gives_a_wrong_figure(length: int) -> None:
    whole = one(DECODE)
    found = events(DECODE + DECODE[:length])
    assert found == [whole]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_encodings(encoding: str) -> None:
    text = (SAMPLES / "0.5.15.post1/eagle3-accept-2.5.log").read_text(encoding="utf-8")
    raw = text.encode(encoding)
    assert events(raw) == events(text.encode())
    assert events(*(raw[at : at + 3] for at in range(0, len(raw), 3))) == events(text.encode())


def test_broken_utf8_is_shown_not_raised() -> None:
    found = one(AT + b"Scheduler hit an exception: caf\xe9\n")
    assert isinstance(found, ev.Fatal)
    assert "�" in found.summary


def test_colours() -> None:
    assert one(b"\x1b[32m" + DECODE.replace(b"] D", b"]\x1b[0m \x1b[1;33mD", 1)) == one(DECODE)


def test_progress_bars_and_interleaved_writers() -> None:
    raw = (
        b"  0%|          | 0/8 [00:00<?, ?it/s]\rCapturing batches (bs=8 avail_mem=83.38 GB):   "
        b"0%|  | 0/8 [00:00<?]"
        b"[2026-11-29 12:40:59 TP3] Capture cuda graph end. Time elapsed: 5.10 s. mem usage=0.06 GB. "
        b"avail mem=83.32 GB.[2026-11-29 12:40:59 TP1] Load weight begin. avail mem=1.00 GB\r\n"
        b"Capturing batches (bs=7 avail_mem=83.32 GB):  12%|x | 1/8 [00:03<00:27]\r"
        b"Capturing batches (bs=6 avail_mem=83.32 GB):  12%|x | 1/8 [00:03<00:27]\n"
    )
    found = events(raw)
    assert [type(event).__name__ for event in found] == ["Progress", "CaptureEnd", "WeightsBegin", "Progress"]
    assert [event.rank for event in found] == [None, "TP3", "TP1", None]
    assert [(e.done, e.total) for e in found if isinstance(e, ev.Progress)] == [(0, 8), (1, 8)]


def test_prefixes_of_containers_and_journals() -> None:
    assert one(b"2026-11-29T12:00:00.1Z stderr F " + DECODE) == one(DECODE)
    assert one(b"nov 29 12:00:00 host sglang[12]: " + DECODE) == one(DECODE)
    json_line = b'{"log":"' + DECODE.rstrip(b"\n") + b'\\n","stream":"stderr"}\n'
    assert one(json_line) == one(DECODE)


def test_a_line_without_end_is_bounded() -> None:
    reader = LogReader()
    for _ in range(40):
        assert reader.feed(b"x" * 100_000) == []
    assert len(reader._cutter._pending) <= MAX_LINE_BYTES
    assert reader.feed(b"\n" + DECODE) == [one(DECODE)]
    long_line = b"y" * (2 * MAX_LINE_BYTES + 5) + DECODE
    assert events(long_line) == events(
        *(long_line[at : at + 65_536] for at in range(0, len(long_line), 65_536))
    )


def test_ranks() -> None:
    assert one(DECODE).rank == "TP0"
    both = one(DECODE.replace(b"TP0", b"DP1 TP2"))
    assert both.rank == "DP1 TP2"
    assert one(DECODE.replace(b" TP0", b"")).rank is None
    assert one(DECODE).time == datetime(2026, 11, 29, 12, 41, 26)
    begin = one(
        b"[2026-11-29 12:00:00 DP1 TP2] Capture draft cuda graph begin. This can take. avail mem=1.5 GB\n"
    )
    assert phase_of(begin) == "capture:draft-decode@TP2"


def test_several_pools_and_missing_fields() -> None:
    pools = one(
        AT + b"Decode batch [12], #running-req: 3, #full token: 5, full token usage: 0.10, "
        b"#swa token: 4, swa token usage: 0.20, npu graph: False, "
        b"gen throughput (token/s): 10.00, #queue-req: 2, "
        b"est. decode TFLOPS/s (per GPU): 1.00\n"
    )
    assert isinstance(pools, ev.DecodeBatch)
    assert (pools.running, pools.tokens, pools.graph, pools.graph_device, pools.queue) == (
        3,
        None,
        False,
        "npu",
        2,
    )
    bare = one(AT + b"Decode batch, #running-req: 3, gen throughput (token/s): 10.00\n")
    assert isinstance(bare, ev.DecodeBatch)
    assert (bare.graph, bare.graph_device, bare.accept_length, bare.queue) == (None, None, None, None)


@pytest.mark.parametrize(
    ("line", "soft", "timeout"),
    [
        (b"Watchdog timeout (self.watchdog_timeout=300)", False, 300.0),
        (b"Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", False, 300.0),
        (b"Scheduler watchdog timeout (self.watchdog_timeout=20.0, self.soft=True)", True, 20.0),
        (b"Detokenizer watchdog timeout (self.watchdog_timeout=60, self.soft=True)", True, 60.0),
    ],
)
def test_watchdogs(line: bytes, soft: bool, timeout: float) -> None:
    found = one(b"[2026-11-29 12:00:00 TP1] " + line + b"\n")
    assert isinstance(found, ev.Watchdog)
    assert (found.soft, found.timeout_s, found.rank) == (soft, timeout, "TP1")
    assert is_fatal(found) is not soft


@pytest.mark.parametrize(
    "line",
    [
        b"[2026-11-29 12:00:00 TP1] Scheduler hit an exception: boom",
        AT + b"DetokenizerManager hit an exception: boom",
        AT + b"Received sigquit from a child process. It usually means the child failed.",
        AT + b"Subprocess scheduler_0 (pid=561) crashed with exit code -9. Triggering SIGQUIT",
        AT + b"Not enough memory. Please try to increase --mem-fraction-static.",
        b"Fatal Python error: Segmentation fault",
        b"terminate called after throwing an instance of 'c10::DistBackendError'",
        b"launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match others",
        b"launch_server.py: error: unrecognized arguments: --enable-piecewise-cuda-graph",
    ],
)
def test_fatal_lines(line: bytes) -> None:
    found = one(line + b"\n")
    assert isinstance(found, ev.Fatal)
    assert not found.after_shutdown


@pytest.mark.parametrize(
    "line",
    [
        AT + b"Ignore import error when loading sglang.srt.models.grok: No module named 'x'",
        AT + b"Error getting chat template for model: not found",
        AT + b"AutoProcessor reports ImportError with the following message: x",
        AT + b"'--disable-cuda-graph' is deprecated and will be removed in a future release.",
        b"/opt/x.py:12: FutureWarning: The pynvml package is deprecated. Please install x instead.",
        b"[2026-11-29 12:00:00 TP2] Setup Custom allreduce failed with no P2P. custom_ar is disabled",
        b"[rank0]:[W1129 12:00:00 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called",
        AT + b"[http_server] Error: Request is disconnected from the client side (type 1).",
    ],
)
def test_benign_look_alikes(line: bytes) -> None:
    assert isinstance(one(line + b"\n"), ev.Benign)


def test_a_benign_traceback_is_one_benign_event() -> None:
    raw = (
        b"[2026-11-29 12:41:19] Can not initialize OpenAIServingResponses, error: "
        b"Traceback (most recent call last):\n"
        b"  File \"a.py\", line 1, in f\n    x()\nModuleNotFoundError: No module named 'openai_harmony'\n\n"
        + DECODE
    )
    assert [type(event).__name__ for event in events(raw)] == ["Benign", "DecodeBatch"]


def test_a_chained_traceback_is_whole() -> None:
    raw = (
        b"[2026-11-29 12:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        b'  File "a.py", line 1, in f\nRuntimeError: CUDA error: out of memory\n'
        b"Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n"
        b"During handling of the above exception, another exception occurred:\n\n"
        b"Traceback (most recent call last):\n"
        b'  File "b.py", line 2, in g\nException: Capture cuda graph failed: CUDA error\n'
        b"Possible solutions:\n"
        b"1. set --mem-fraction-static to a smaller value\n\n"
        b"Not part of it\n"
    )
    found = one(raw)
    assert isinstance(found, ev.Fatal)
    assert len(found.lines) == 12
    assert found.rank == "TP1"
    assert found.summary == "Exception: Capture cuda graph failed: CUDA error"


def test_an_unknown_traceback_is_seen_but_not_called_fatal() -> None:
    found = one(b'Traceback (most recent call last):\n  File "a.py", line 1\nOSError: [Errno 98] in use\n')
    assert isinstance(found, ev.ExceptionSeen)
    assert found.summary == "OSError: [Errno 98] in use"
    assert not is_fatal(found)


def test_an_unknown_error_line_is_suspect() -> None:
    found = one(AT + b"Something failed with an error\n")
    assert isinstance(found, ev.Suspect)
    assert events(AT + b"Tree cache initialized\n") == []


def test_retraction_hybrid_attention_nccl() -> None:
    gone = one(AT + b"KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 7\n")
    assert isinstance(gone, ev.Retraction) and gone.requests == 3
    hybrid = one(
        AT + b"Using hybrid attention backend for decode and prefill: decode_backend=triton, "
        b"prefill_backend=flashinfer.\n"
    )
    assert isinstance(hybrid, ev.HybridAttention)
    assert (hybrid.decode_backend, hybrid.prefill_backend) == ("triton", "flashinfer")
    nccl = one(b"[2026-11-29 12:00:00 TP0] sglang is using nccl==2.27.5\n")
    assert isinstance(nccl, ev.NcclVersion) and nccl.version == "2.27.5"


def test_the_founding_notes_own_lines() -> None:
    """Rows 7, 8 and 12 of the founding cases."""
    begins = b"".join(
        b"[2026-01-10 10:00:00 TP%d] Capture cuda graph begin. This can take long. avail mem=9.00 GB\n" % rank
        for rank in range(1, 8)
    )
    found = events(begins)
    assert [event.rank for event in found] == [f"TP{rank}" for rank in range(1, 8)]
    assert phase_of(found[2]) == "capture:target-decode@TP3"
    end = one(
        b"[2026-01-10 10:01:00 TP4] Capture draft extend cuda graph end. Time elapsed: 1.42 s. "
        b"mem usage=0.49 GB. avail mem=6.98 GB.\n"
    )
    assert isinstance(end, ev.CaptureEnd)
    assert (end.kind, end.seconds, end.used_gb, end.available_gb) == ("draft-extend", 1.42, 0.49, 6.98)
    ready = one(b"[2026-01-10 10:02:00] The server is fired up and ready to roll!\n")
    assert phase_of(ready) == "ready"


def test_what_follows_a_request_to_stop_is_a_consequence() -> None:
    stop = AT + b"SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    crash = b"[2026-11-29 12:00:01] Subprocess scheduler_0 (pid=1) crashed with exit code -15. Triggering\n"
    after = events(stop + crash)[-1]
    alone = one(crash)
    assert isinstance(after, ev.Fatal) and after.after_shutdown
    assert isinstance(alone, ev.Fatal) and not alone.after_shutdown
