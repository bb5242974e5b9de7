"""Stacks of an engine's processes, by py-spy: of all of them first, then with native frames while time is left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokgate.host import proc, py_spy
from tokgate.host.proc import Process

FAILED = "py-spy: "
"""What the text begins with where the tool gave no stack."""

_AT_ONCE = 8
_PLAIN_S = 3.0
# Native frames need the symbols of all that is loaded, which takes a GPU engine seconds.
_NATIVE_LEAST_S = 1.0
_FRAMES_SHOWN = 4


def dump(members: Sequence[Process], until_s: float) -> list[str]:
    """The stack of each process as text, or one line that says why there is none.

    Args:
        until_s: by when to be done, on the monotonic clock.
    """
    tool = py_spy.find()
    if tool is None:
        return ["py-spy is not installed in tokgate's environment" for _ in members]
    if not members:
        return []

    def plain(process: Process) -> str:
        # py-spy stops a process while it reads; one that is stopped already would keep it waiting.
        options = ["--nonblocking"] if _is_stopped(process) else []
        return _run(tool, process.pid, options, min(_PLAIN_S, until_s - time.monotonic()))

    def native(process: Process) -> str:
        left_s = until_s - time.monotonic()
        return _run(tool, process.pid, ["--native"], left_s) if left_s > _NATIVE_LEAST_S else ""

    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(members))) as pool:
        stacks = list(pool.map(plain, members))
        telling = [n for n, stack in enumerate(stacks) if short(stack) and not _is_stopped(members[n])]
        telling.sort(key=lambda n: _rank_of(members[n], members))
        for number, better in zip(telling, pool.map(native, [members[n] for n in telling]), strict=True):
            if short(better):
                stacks[number] = better
            else:
                stacks[number] += f"\n(native frames: {first_line(better) if better else 'no time left'})"
    return stacks


def frames(stack: str) -> list[str]:
    """Python frames of the main thread, or of the first one, innermost first."""
    threads: list[tuple[str, list[str]]] = []
    for line in stack.splitlines():
        if line.startswith("Thread "):
            threads.append((line, []))
        elif line.startswith("    ") and threads:
            threads[-1][1].append(line.strip())
    if not threads:
        return []
    found = next((found for head, found in threads if "MainThread" in head), threads[0][1])
    return [frame for frame in found if ".py:" in frame] or found


def short(stack: str) -> str:
    """The innermost frames on one line; empty when there are none."""
    return " < ".join(frames(stack)[:_FRAMES_SHOWN])


def odd_rank(stacks: Mapping[str, str]) -> str | None:
    """The rank that stands elsewhere than the others, in words: in a hung collective they wait for it.

    Args:
        stacks: py-spy's text by title of the rank's process; three ranks at least.
    """
    known = {title: frames(stack)[::-1] for title, stack in stacks.items() if frames(stack)}
    if len(known) < 3:
        return None
    # Ranks have roles, so whole functions may be a rank's own: where all are in one function, its line tells.
    at = {
        title: dict(frame.rsplit(":", 1) for frame in rank if ":" in frame) for title, rank in known.items()
    }
    for function in (frame.rsplit(":", 1)[0] for frame in next(iter(known.values()))):
        lines: dict[str, list[str]] = {}
        for title, functions in at.items():
            lines.setdefault(functions.get(function, ""), []).append(title)
        if "" in lines or len(lines) < 2:
            continue
        few = min(lines.values(), key=len)
        if len(few) * 2 < len(known):
            who = ", ".join(few)
            return f"{who} is elsewhere than the other ranks: {short(stacks[few[0]])}"
    return None


def first_line(text: str) -> str:
    """What a tool said first."""
    return text.strip().splitlines()[0] if text.strip() else "no output"


def _rank_of(process: Process, members: Sequence[Process]) -> int:
    """Who is asked first when there is not time for all: schedulers, the detokenizer, the root, the rest."""
    title = proc.title(process)
    if "scheduler" in title:
        return 0
    return 1 if "::" in title or process is members[0] else 2


def _is_stopped(process: Process) -> bool:
    return process.state in {"T", "t"}


def _run(tool: Path, pid: int, options: Sequence[str], timeout_s: float) -> str:
    if timeout_s <= 0:
        return f"{FAILED}no time left"
    try:
        done = subprocess.run(
            [str(tool), "dump", "--pid", str(pid), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{FAILED}no answer within {timeout_s:.1f} s"
    except OSError as error:
        return f"{FAILED}{error}"
    return done.stdout if done.returncode == 0 else f"{FAILED}{done.stderr.strip() or done.returncode}"
