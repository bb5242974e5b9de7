"""Explained logs: every sample's golden text, the founding notes' own lines, planted faults with controls."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tokgate.cli import run
from tokgate.report.explain_compare import compare
from tokgate.report.explain_ranks import missing_ranks, odd_ranks
from tokgate.report.explain_text import headline, text


def _helper() -> ModuleType:
    """The sibling module, which importlib mode does not put on the path."""
    spec = importlib.util.spec_from_file_location("explained", Path(__file__).with_name("explained.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["explained"] = module
    spec.loader.exec_module(module)
    return module


EXPLAINED = _helper()
GOLDENS = sorted(path.name for path in EXPLAINED.GOLDEN.glob("*.txt"))


@pytest.fixture(scope="module")
def golden_texts() -> dict[str, str]:
    found: dict[str, str] = EXPLAINED.golden_texts()
    return found


def test_no_golden_is_orphaned_or_missing(golden_texts: dict[str, str]) -> None:
    assert sorted(golden_texts) == GOLDENS
    assert len(GOLDENS) == 21


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, golden_texts: dict[str, str]) -> None:
    assert golden_texts[name] == (EXPLAINED.GOLDEN / name).read_text()


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("0.5.15.post1/died-after-capture-missing-module.log", "EXITED after capture:draft-decode@TP0: Mod"),
        ("0.5.15.post1/baseline-many-ignored-import-errors.log", "READY after 102 s; 899.1 tok/s at 1 run"),
        ("0.5.15.post1/eagle-flag-with-eagle3-draft.log", "READY after 42 s; 329.9 tok/s at 1 running; acc"),
        ("0.5.15.post1/eagle3-graphs-with-suspend.log", "READY after 96 s; 963.9 tok/s at 1 running; accep"),
    ],
)
def test_line_1_alone_suffices(name: str, start: str) -> None:
    line = headline(EXPLAINED.explained(name))
    assert line.startswith(f"{name}: {start}")


def test_accept_length_one_is_misconfigured_and_2_5_is_not() -> None:
    wrong = headline(EXPLAINED.explained("0.5.15.post1/eagle-flag-with-eagle3-draft.log"))
    assert "MISCONFIGURED: the draft's tokens are never accepted" in wrong
    right = EXPLAINED.explained("0.5.15.post1/eagle3-accept-2.5.log")
    assert "MISCONFIGURED" not in headline(right)
    assert right.accept_length == pytest.approx(2.5, abs=0.05)


# Founding notes, rows 7, 8 and 12.
BEGIN = (
    "[2026-01-10 10:00:{rank:02} TP{rank}] Capture cuda graph begin. This can take long. avail mem=9.00 GB\n"
)
END = (
    "[2026-01-10 10:01:{rank:02} TP{rank}] Capture draft extend cuda graph end. "
    "Time elapsed: {seconds:.2f} s. mem usage=0.49 GB. avail mem=6.98 GB.\n"
)


def test_row_7_coverage_of_every_rank() -> None:
    some = EXPLAINED.explained_bytes("".join(BEGIN.format(rank=rank) for rank in range(1, 8)).encode())
    assert [capture.rank for capture in some.captures] == [f"TP{rank}" for rank in range(1, 8)]
    assert not any(capture.ended for capture in some.captures)
    assert "NOT READY, last seen in capture:target-decode@TP1, a capture has not ended" in headline(some)
    arguments = "[2026-01-10 10:00:00] server_args=ServerArgs(tp_size=8, speculative_algorithm='EAGLE3')\n"
    lines = arguments + "".join(BEGIN.format(rank=rank) for rank in range(1, 8))
    known = EXPLAINED.explained_bytes(lines.encode())
    assert missing_ranks(known) == {"target-verify": ["TP0"]}
    assert "no target-verify capture of TP0 in this log" in text(known)
    whole = EXPLAINED.explained_bytes((lines + BEGIN.format(rank=0)).encode())
    assert missing_ranks(whole) == {}


def test_row_8_ranks_tabulated_and_an_odd_one_flagged() -> None:
    seconds = {4: 1.42, 5: 1.41, 6: 1.40, 7: 1.41}
    even = EXPLAINED.explained_bytes(
        "".join(END.format(rank=rank, seconds=took) for rank, took in seconds.items()).encode()
    )
    assert [(c.rank, c.seconds, c.used_gb, c.available_gb) for c in even.captures] == [
        (f"TP{rank}", took, 0.49, 6.98) for rank, took in seconds.items()
    ]
    assert odd_ranks(even.captures) == []
    assert "odd rank" not in text(even)
    seconds[6] = 4.8
    odd = EXPLAINED.explained_bytes(
        "".join(END.format(rank=rank, seconds=took) for rank, took in seconds.items()).encode()
    )
    assert [(item.rank, item.kind) for item in odd_ranks(odd.captures)] == [("TP6", "draft-extend")]
    assert "odd rank   TP6 draft-extend: 4.80 s, median 1.42 s" in text(odd)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_late_rank_is_odd_and_those_that_waited_for_it_are_not(ranks: int) -> None:
    def line(rank: int, second: int, words: str) -> str:
        return f"[2026-11-29 12:00:{second:02d} TP{rank}] Capture target verify CUDA graph {words}\n"

    last = ranks - 1
    log = "".join(line(rank, 10, "begin. bs=[1, 2], avail mem=7.47 GB") for rank in range(last))
    log += line(last, 18, "begin. bs=[1, 2], avail mem=7.47 GB")
    for rank in range(ranks):
        took = 2.0 if rank == last else 10.0
        log += line(rank, 20, f"end. elapsed={took} s, mem usage=0.49 GB, avail mem=6.98 GB.")
    record = EXPLAINED.explained_bytes(log.encode())
    assert [(item.rank, item.what) for item in odd_ranks(record.captures)] == [
        (f"TP{last}", "began 8 s after the others, which waited for it")
    ]
    assert (
        odd_ranks(
            EXPLAINED.explained_bytes(
                log.replace(":18 ", ":12 ").replace("=2.0 s", "=10.0 s").encode()
            ).captures
        )
        == []
    )


def test_a_rank_whose_capture_does_not_end_is_odd() -> None:
    done = (
        "[2026-01-10 10:02:00 TP{rank}] Capture cuda graph end. Time elapsed: 3.0 s. "
        "mem usage=0.1 GB. avail mem=1 GB.\n"
    )
    raw = "".join(BEGIN.format(rank=rank) for rank in range(4))
    raw += "".join(done.format(rank=rank) for rank in (0, 1, 3))
    record = EXPLAINED.explained_bytes(raw.encode())
    assert [(item.rank, item.what) for item in odd_ranks(record.captures)] == [
        ("TP2", "did not end, others did")
    ]


def test_row_12_ready_line_and_a_false_alarm() -> None:
    record = EXPLAINED.explained_bytes(
        b"[2026-01-10 10:00:00] Ignore import error when loading sglang.srt.models.x: No module named 'x'\n"
        b"[2026-01-10 10:05:00] The server is fired up and ready to roll!\n"
    )
    assert headline(record) == "server.log: READY after 300 s"
    assert record.benign == {"model file that is not served": 1}


def test_no_log_at_all_is_said() -> None:
    assert "NO SGLANG LOG" in headline(EXPLAINED.explained_bytes(b"hello\nworld\n"))
    assert "NO SGLANG LOG" in headline(EXPLAINED.explained_bytes(b""))


def test_graphs_captured_and_not_replayed_is_said() -> None:
    raw = (EXPLAINED.SAMPLES / "0.5.15.post1/baseline-graphs.log").read_bytes()
    assert "captured, yet" not in text(EXPLAINED.explained_bytes(raw))
    planted = raw.replace(b"cuda graph: True, gen", b"cuda graph: False, gen")
    assert "captured, yet 11 lines ran without" in text(EXPLAINED.explained_bytes(planted))


def test_a_hard_watchdog_is_a_hang_a_soft_one_is_not() -> None:
    raw = (EXPLAINED.SAMPLES / "0.5.15.post1/eagle3-eager.log").read_bytes()
    line = b"[2026-11-29 12:30:00] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=%s)\n"
    assert "HANG after it was ready" in headline(EXPLAINED.explained_bytes(raw + line % b"False"))
    soft = EXPLAINED.explained_bytes(raw + line % b"True")
    assert "READY" in headline(soft)
    assert "soft, reports only" in text(soft)


def test_break_even_of_two_logs_either_way_round() -> None:
    base = EXPLAINED.explained("0.5.13.post1/baseline-graphs.log")
    eagle = EXPLAINED.explained("0.5.13.post1/eagle3-graphs.log")
    forth, back = compare(base, eagle), compare(eagle, base)
    assert forth.break_even is not None and forth.break_even == back.break_even
    assert (forth.judged, back.judged) == ("B", "A")
    assert not forth.break_even.wins
    assert compare(base, base).break_even is None


def test_command_text_json_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [str(EXPLAINED.SAMPLES / name) for name in EXPLAINED.PAIRS[0]]
    page = tmp_path / "page.html"
    assert run(["explain", *logs, "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("baseline-graphs.log: READY") and "break-even of B" in out
    html = page.read_text()
    assert html.count("<svg") == 2 and "NET_LOSS" in html and "<script" not in html
    assert run(["explain", *logs, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [log["ready"] for log in record["logs"]] == [True, True]
    assert record["comparisons"][0]["break_even"]["wins"] is False
    assert record["logs"][1]["captures"][1]["used_gb"] == -0.04
    series = record["logs"][1]["series"]
    assert (series["every"], len(series["rate_tok_s"]), series["accept_length"][0]) == (1, 40, 3.1)
    assert record["logs"][0]["series"]["accept_length"][0] is None


def test_command_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(tmp_path / "nothing.log")]) == 2
    assert "cannot read log" in capsys.readouterr().err
    log = str(EXPLAINED.SAMPLES / EXPLAINED.LOGS[0])
    assert run(["explain", log, "--html", str(tmp_path / "no" / "page.html")]) == 3
    assert "cannot write" in capsys.readouterr().err


def a_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def a_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        # Names of sockets may not be long.
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)
    return path


def a_folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (a_pipe, "pipe"),
        (a_socket, "socket"),
        (a_folder, "folder"),
        (lambda path: Path("/dev/zero"), "device"),
    ],
)
def test_what_is_no_file_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], Path], kind: str
) -> None:
    path = make(tmp_path / "given")
    good = str(EXPLAINED.SAMPLES / EXPLAINED.LOGS[0])
    assert run(["explain", good, str(path)]) == 2
    told = capsys.readouterr()
    assert f"cannot read log {path}: it is a {kind}, not a file" in told.err and not told.out


def test_a_file_without_permission_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: who runs this may be root, whom no folder keeps out."""
    path, stat = tmp_path / "server.log", Path.stat

    def refused(self: Path, **options: Any) -> os.stat_result:
        if self == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", refused)
    assert run(["explain", str(path)]) == 2
    assert f"cannot read log {path}: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("form", [(), ("--json",), ("--html", "page.html")])
@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", (), "not a log of SGLang: given"),
        ('{"traceEvents": []}', (), "given: the trace holds no events"),
        ('{"traceEvents": [', (), "cut off before the first one"),
        (
            '{"traceEvents": []}',
            ("--target", "/nope", "--bandwidth-gb-s", "4000"),
            "--target /nope: no such folder; expected the folder of the target model",
        ),
        (
            '{"traceEvents": []}',
            ("--target", ".", "--bandwidth-gb-s", "4000"),
            "--target .: it holds no config.json",
        ),
    ],
)
def test_the_exit_code_is_the_same_in_every_form(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: tuple[str, ...],
    content: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("given").write_text(content)
    assert run(["explain", "given", *options, *form]) == 2
    assert message in (said := capsys.readouterr().err)
    assert "Errno" not in said


def test_the_founding_day_as_two_logs() -> None:
    """82.5 tok/s without, 60.6 tok/s with speculation at accept length 2.0: rows 1 and 5."""
    prefill = (
        "[2026-01-10 10:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, "
        "token usage: 0.00, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 1.08\n"
    )
    line = (
        "[2026-01-10 10:00:0{second} TP0] Decode batch, #running-req: 1, #token: 44, token usage: 0.00, "
        "{accept}cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0\n"
    )

    def log(rate: float, accept: str) -> bytes:
        waking = line.format(second=1, accept=accept, rate=rate / 9)
        steady = "".join(line.format(second=second, accept=accept, rate=rate) for second in range(2, 9))
        return (prefill + waking + steady).encode()

    plain = EXPLAINED.explained_bytes(log(82.5, ""), "baseline.log")
    eagle = EXPLAINED.explained_bytes(log(60.6, "accept len: 2.00, accept rate: 0.33, "), "eagle3.log")
    assert (plain.idle_lines, eagle.idle_lines) == (1, 1)
    found = compare(plain, eagle)
    assert found.break_even is not None
    assert found.break_even.cycle_ms == pytest.approx(33.0)
    assert found.break_even.break_even_accept_length == pytest.approx(2.72, abs=0.01)
    assert found.break_even.speedup == pytest.approx(0.735, abs=0.001)
    assert not found.break_even.wins


def test_a_rejected_flag_is_the_headline() -> None:
    """As argparse of 0.5.23 really says it, after a page of usage."""
    raw = (
        b"usage: launch_server.py [-h] --model-path MODEL_PATH [--config CONFIG]\n"
        b"                        [--disable-cuda-graph] [--enable-dp-attention]\n"
        b"launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match "
        b"--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill\n"
    )
    line = headline(EXPLAINED.explained_bytes(raw))
    assert line.startswith(
        "server.log: EXITED in an unknown phase: launch_server.py: error: ambiguous option"
    )


def test_the_same_death_of_several_ranks_is_quoted_once() -> None:
    death = (
        "[2026-01-10 10:00:00 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\nRuntimeError: {what}\n\n'
    )
    raw = "".join(death.format(rank=rank, what="boom") for rank in (10, 2))
    record = EXPLAINED.explained_bytes((raw + death.format(rank=3, what="other")).encode())
    said = text(record)
    assert said.count("RuntimeError: boom") == 2  # line 1 and the quotation
    assert "fatal      2026-01-10 10:00:00 TP2, TP10" in said
    assert "RuntimeError: other" in said


def test_captures_stand_by_kind_and_rank() -> None:
    lines = "".join(END.format(rank=rank, seconds=1.4) for rank in (10, 2, 0))
    record = EXPLAINED.explained_bytes(lines.encode())
    assert [capture.rank for capture in record.captures] == ["TP0", "TP2", "TP10"]
