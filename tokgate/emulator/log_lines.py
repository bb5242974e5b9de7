"""SGLang's log lines, in the wording of the emulated release."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

NEW_CAPTURE_WORDING = 14
LEGACY_KINDS = {
    "target verify": "cuda graph",
    "target decode": "cuda graph",
    "draft decode": "draft cuda graph",
    "draft extend": "draft extend cuda graph",
}


class Log:
    """Writes whole lines to standard error, where SGLang and uvicorn write theirs.

    Args:
        rank: tensor-parallel rank, or ``None`` where no rank is shown (one GPU, or the HTTP process).
    """

    def __init__(self, rank: int | None = None) -> None:
        self._suffix = "" if rank is None else f" TP{rank}"

    def line(self, message: str) -> None:
        """One stamped line."""
        self.raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self._suffix}] {message}\n")

    def raw(self, text: str) -> None:
        """Text as it is, in one write. A reader that went away is no reason to stop serving."""
        data = text.encode()
        try:
            while data:
                data = data[os.write(2, data) :]
        except OSError:
            return


def capture_begin(
    patch: int, kind: str, sizes: Sequence[int], tokens_per_bs: int, avail_gb: float
) -> list[str]:
    """Lines that announce a capture. ``kind`` in the newer wording: target verify, draft decode, ..."""
    if patch >= NEW_CAPTURE_WORDING:
        return [
            f"Capture {kind} CUDA graph begin. backend=full, num_tokens_per_bs={tokens_per_bs}, "
            f"bs={list(sizes)}, avail mem={avail_gb:.2f} GB"
        ]
    lines = [
        f"Capture {LEGACY_KINDS[kind]} begin. This can take up to several minutes. "
        f"avail mem={avail_gb:.2f} GB"
    ]
    if kind.startswith("target"):
        lines.append(f"Capture cuda graph bs {list(sizes)}")
    return lines


def capture_end(patch: int, kind: str, elapsed_s: float, used_gb: float, avail_gb: float) -> str:
    """The line that ends a capture."""
    if patch >= NEW_CAPTURE_WORDING:
        return (
            f"Capture {kind} CUDA graph end. elapsed={elapsed_s:.2f} s, mem usage={used_gb:.2f} GB, "
            f"avail mem={avail_gb:.2f} GB."
        )
    return (
        f"Capture {LEGACY_KINDS[kind]} end. Time elapsed: {elapsed_s:.2f} s. mem usage={used_gb:.2f} GB. "
        f"avail mem={avail_gb:.2f} GB."
    )


def capture_progress(done: int, total: int, size: int, avail_gb: float, elapsed_s: float) -> str:
    """tqdm's bar during a capture; a carriage return in front, as tqdm overwrites its line."""
    filled = done * 10 // total
    bar = "█" * filled + " " * (10 - filled)
    clock = f"{int(elapsed_s) // 60:02d}:{int(elapsed_s) % 60:02d}"
    rate = f"{done / elapsed_s:5.2f}it/s" if done and elapsed_s else "?it/s"
    left = clock if done == total else "?"
    return (
        f"\rCapturing batches (bs={size} avail_mem={avail_gb:.2f} GB): {done * 100 // total:3d}%|{bar}| "
        f"{done}/{total} [{clock}<{left}, {rate}]"
    )


def prefill_batch(
    graph_word: str, seqs: int, tokens: int, cached: int, usage: float, running: int, queued: int, rate: float
) -> str:
    """The line of a prefill batch. ``rate`` in tokens per second."""
    return (
        f"Prefill batch, #new-seq: {seqs}, #new-token: {tokens}, #cached-token: {cached}, "
        f"token usage: {usage:.2f}, #running-req: {running}, #queue-req: {queued}, #pending-token: 0, "
        f"{graph_word}: False, input throughput (token/s): {rate:.2f}"
    )


def decode_batch(
    graph_word: str,
    running: int,
    tokens: int,
    usage: float,
    accept: tuple[float, float] | None,
    replayed: bool,
    rate: float,
    queued: int,
) -> str:
    """The line of every 40th decode step. ``accept``: length and rate since the last one, if speculative."""
    middle = f"accept len: {accept[0]:.2f}, accept rate: {accept[1]:.2f}, " if accept else ""
    return (
        f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, {middle}"
        f"{graph_word}: {replayed}, gen throughput (token/s): {rate:.2f}, #queue-req: {queued}"
    )
