"""The blows: what each trial of the supervisor does to its server, and how that must end.

``python -m benchmarks.supervision.blows NAME ...`` makes one trial, in a process of its own; started by
:mod:`benchmarks.supervision.trials`. It writes ``row.json``, ``message.txt``, the evidence and the engine's log into
its folder; whatever ends it, its reaper ends the server.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict

from benchmarks.supervision.trial import Body, Trial, add_options
from tokgate.errors import HostLocked
from tokgate.host import gpu
from tokgate.host.lock import GpuLocks
from tokgate.host.visible import visible_indices
from tokgate.server import probe
from tokgate.server.launch import start
from tokgate.server.running import Server

GAP_S = 10.0
STRUCK_AFTER_CHUNKS = 20


def in_phase(prefix: str, number: signal.Signals, *short: str) -> Body:
    """A trial that strikes when a phase begins.

    Args:
        short: phases with the short deadline.
    """

    def body(trial: Trial) -> None:
        def announce(phase: str) -> None:
            if phase.startswith(prefix) and not trial.struck_s:
                trial.strike(number)

        looking = threading.Thread(target=trial.look_ahead, daemon=True)
        looking.start()
        start(trial.spec(*short), announce).stop()

    return body


def in_decode(number: signal.Signals) -> Body:
    """A trial that strikes while a long request is answered."""

    def body(trial: Trial) -> None:
        with start(trial.spec()) as server:
            request = probe.FirstRequest(server.host, server.port, 2000)
            try:
                with server.watch("decode", on_death=request.close):
                    _follow(trial, server, request, number)
            finally:
                request.close()

    return body


def _follow(trial: Trial, server: Server, request: probe.FirstRequest, number: signal.Signals) -> None:
    """Strike after some chunks; then wait as a client with a deadline does."""
    seen, since_s = -1, time.monotonic()
    while not request.state.finished:
        now = time.monotonic()
        if request.state.chunks != seen:
            seen, since_s = request.state.chunks, now
        if seen > STRUCK_AFTER_CHUNKS and not trial.struck_s:
            trial.strike(number)
        if now - since_s > GAP_S:
            raise server.hang("decode", now - since_s, GAP_S)
        time.sleep(0.01)
    if request.state.fault:
        raise ConnectionError(request.state.fault)


def control(trial: Trial) -> None:
    """Start, stop, and keep what the start told."""
    server = start(trial.spec())
    trial.processes()
    trial.row.mib_held = trial.held_mib()
    facts = {
        "phases_s": {phase.name: round(phase.seconds, 3) for phase in server.phases},
        "captures": [asdict(capture) for capture in server.captures],
        "overrides": [str(item) for item in server.resolved()],
        "environments": server.environments,
    }
    teardown = server.stop()
    facts["teardown"] = {
        key: getattr(teardown, key)
        for key in ("seconds", "forced", "killed", "gpu_mib_back", "gpu_mib_left", "holders")
    }
    (trial.out / "control.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    trial.row.headline = (
        f"ended in {teardown.seconds:.1f} s, {sum((teardown.gpu_mib_back or {}).values())} MiB"
    )
    assert not teardown.holders and not teardown.killed, teardown


def killed_gate(trial: Trial) -> None:
    """SIGKILL of a gate that holds a server: its reaper must end it."""
    command = [sys.executable, "-m", "benchmarks.supervision.blows", *sys.argv[1:], "--hold"]
    gate = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TRIAL_GATE": str(os.getpid())}
    )
    assert gate.stdout is not None
    told = ""
    while not told.startswith("holds "):
        told = gate.stdout.readline().strip()
        assert told or gate.poll() is None, "the gate that was to be killed ended by itself"
    assert trial.processes(), "the control: there is something to survive"
    trial.row.mib_held = trial.held_mib()
    trial.struck_s = time.monotonic()
    gate.kill()
    gate.communicate()
    while trial.processes() and time.monotonic() - trial.struck_s < 30:
        time.sleep(0.05)
    reaped_s = time.monotonic() - trial.struck_s
    while trial.held_mib() and time.monotonic() - trial.struck_s < 30:
        time.sleep(0.05)
    back_s = time.monotonic() - trial.struck_s
    memory = "not told" if trial.held_mib() is None else f"back after {back_s:.1f} s"
    trial.row.headline = f"processes gone after {reaped_s:.1f} s, GPU memory {memory}"


def two_gates(trial: Trial) -> None:
    """The second of two gates is refused, and told by whom."""
    nvml = gpu.open_nvml()
    names = [f"trial-{os.getpid()}"]
    if not isinstance(nvml, str):
        # Only those that this trial was given: another gate may hold the others.
        uuids = nvml.uuids()
        names = [uuids[index] for index in visible_indices(nvml, {}, nvml.count)]
    script = (
        "import sys\nfrom tokgate.host.lock import GpuLocks\n"
        f"with GpuLocks({names!r}):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with GpuLocks(names):
            pass
    except HostLocked as error:
        assert f"pid {first.pid} " in error.headline
        raise
    finally:
        first.communicate("\n")


# Name -> the right end, and what is done.
PLAN: dict[str, tuple[str, Body]] = {
    "control": ("ready", control),
    "suspend-in-load": ("HANG", in_phase("weights", signal.SIGSTOP, "weights", "kv_cache")),
    "suspend-in-capture": ("HANG", in_phase("capture:", signal.SIGSTOP, "capture")),
    "kill-in-capture": ("EXITED", in_phase("capture:", signal.SIGKILL)),
    "abort-in-capture": ("EXITED", in_phase("capture:", signal.SIGABRT)),
    "suspend-in-decode": ("HANG", in_decode(signal.SIGSTOP)),
    "kill-in-decode": ("EXITED", in_decode(signal.SIGKILL)),
    "gate-killed": ("ready", killed_gate),
    "two-gates": ("HOSTLOCKED", two_gates),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PLAN)
    add_options(parser)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    expected, body = PLAN[options.name]
    trial = Trial(options, expected)
    if options.hold:
        print(f"holds {start(trial.spec()).launch}", flush=True)
        time.sleep(3600)
    row = trial.run(body)
    (trial.out / "row.json").write_text(json.dumps(asdict(row)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
