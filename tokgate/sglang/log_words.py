"""Which of SGLang's log lines are fatal, harmless, or tell of a silent choice.

Harmless look-alikes are known by name: a healthy server says "error" dozens of times.
"""

from __future__ import annotations

import re

# What the server does not survive. Searched in a message's text.
FATAL = re.compile(
    rb"^\w+ hit an exception\b"
    rb"|^Received sigquit from a child process"
    rb"|^SIGQUIT received"
    rb"|^Subprocess \S+ .*crashed with exit code"
    rb"|^Not enough memory\."
    rb"|^Fatal Python error:"
    rb"|^terminate called "
    rb"|: error: (?:ambiguous option|unrecognized arguments|argument |the following arguments)"
)
SHUTDOWN = re.compile(rb"^SIGTERM received|^Gracefully exiting")

# What looks alarming and is harmless: (tokgate's word, pattern).
BENIGN: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (reason, re.compile(pattern, re.I))
    for reason, pattern in (
        ("model file that is not served", rb"^Ignore import error when loading|reports ImportError with"),
        ("no chat template", rb"Error getting chat template|No (?:HuggingFace )?chat template found"),
        ("no generation config", rb"^Failed to load generation config"),
        ("file limit", rb"^Fail to set RLIMIT"),
        (
            "deprecation",
            rb"is deprecated|still supported, but|DeprecationWarning|FutureWarning|pynvml.*deprecat",
        ),
        ("Python warning", rb"^\S+:\d+: \w*Warning:|^\d.* - WARNING - "),
        (
            "optional API",
            rb"OpenAIServingResponses.* (?:init failed|error:)|^Can not initialize OpenAIServingResponses",
        ),
        ("package walk", rb"Unexpected error during package walk"),
        (
            "optional kernel",
            rb"flashinfer\.comm|tilelang not installed|Custom allreduce|custom_all_?reduce|custom_ar\b",
        ),
        (
            "optional tokenizer feature",
            rb"Failed to get yes/no token IDs|Vocab type detection failed|fallback token IDs",
        ),
        (
            "CPU engine",
            # A server of several ranks is warned of running out of memory whether it does or not.
            rb"^Cannot detect CUDA architecture|memory amounts? of .*ranks? cannot be determined in prior",
        ),
        ("client went away", rb"Request is disconnected from the client side"),
        ("NCCL at shutdown", rb"should dump|destroy_process_group\(\) was not called"),
        ("Python at exit", rb"leaked (?:semaphore|shared_memory) objects|^Exception ignored in"),
        (
            "crash diagnostics",
            rb"crash diagnostics|No live scheduler processes found|kill_process_tree called",
        ),
    )
)

# Silent choices and overrides: (argument, pattern).
HINTS: tuple[tuple[str | None, re.Pattern[bytes]], ...] = tuple(
    (key, re.compile(pattern, re.I))
    for key, pattern in (
        ("max_running_requests", rb"^Max running requests is reset to"),
        ("speculative_num_draft_tokens", rb"^speculative_num_draft_tokens is (?:adjusted|set) to"),
        ("cuda_graphs", rb"^Cuda graph is disabled because"),
        ("prefill_cuda_graphs", rb"^Disable (?:prefill|piecewise) CUDA graph because|prefill CUDA graph\.$"),
        ("disable_overlap_schedule", rb"^Overlap sched\w+ is |spec v2 is (?:enabled|used)|^Spec v2 is "),
        ("speculative_draft_attention_backend", rb"^Overriding draft attention backend"),
        ("enable_mixed_chunk", rb"mixed chunked prefill (?:is|are) disabled|^Mixed chunk"),
        ("chunked_prefill_size", rb"chunked prefill size is adjusted"),
        ("attention_backend", rb"attention backend (?:is|not) |will fallback to \w+ backend"),
        (
            None,
            rb"is (?:reset|adjusted|overridden|forced|changed) to\b|^Overriding |not explicitly specified",
        ),
    )
)
SUSPECT = re.compile(rb"\berror\b|exception|traceback|\bfailed\b|\bfatal\b|out of memory|segfault", re.I)


# Every pattern above needs one of these (lower case): most lines have none and are done with at once.
KEYWORDS = (
    *(b"error", b"exception", b"traceback", b"fail", b"fatal", b"memory", b"segfault", b"warning"),
    *(b"sigquit", b"sigterm", b"crash", b"terminate", b"exiting", b"deprecat", b"supported", b"template"),
    *(b"rlimit", b"openaiserving", b"package walk", b"flashinfer", b"tilelang", b"custom", b"token id"),
    *(b"architecture", b"disconnected", b"should dump", b"process", b"leaked", b"ignored", b"diagnostics"),
    *(b" reset ", b"adjusted", b"set to", b" graph", b"overlap", b"spec v2", b"overrid", b"mixed chunk"),
    *(b"backend", b"forced", b"changed", b"explicitly", b"chunked"),
)
_KEYWORD = re.compile(b"|".join(map(re.escape, KEYWORDS)))
_READ_BYTES = 2048


def classify(message: bytes) -> tuple[str, str | None] | None:
    """What a message is: ``fatal``, ``shutdown``, ``benign``, ``hint`` or ``suspect``, and a detail.

    The detail is the reason of a benign line and the argument of a hint. ``None``: of no interest. Only
    the first two kilobytes are read.
    """
    head = message[:_READ_BYTES]
    return judge(head) if _KEYWORD.search(head.lower()) else None


def judge(message: bytes) -> tuple[str, str | None] | None:
    """As :func:`classify`, by every pattern in turn."""
    if FATAL.search(message):
        return "fatal", None
    if SHUTDOWN.search(message):
        return "shutdown", None
    for reason, pattern in BENIGN:
        if pattern.search(message):
            return "benign", reason
    for key, pattern in HINTS:
        if pattern.search(message):
            return "hint", key
    return ("suspect", None) if SUSPECT.search(message) else None
