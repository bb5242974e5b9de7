"""Drives one launcher once, in a process of its own: ``launcher_drivers.py JOB`` prints one line of JSON.

Runs in tokgate's environment, or in SGLang's for SGLang's launcher: hence nothing of tokgate at the top.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

SGLANG_LAUNCH_S = 600
"""DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH of sglang.test.test_utils."""
VLLM_LAUNCH_S, VLLM_POLL_S, VLLM_TERM_S = 240, 0.5, 8

Job = dict[str, Any]
Stop = Callable[[], None]


def tokgate_launcher(job: Job) -> Stop:
    """tokgate's own, with the deadlines that gate.yaml has for GPUs."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tokgate.config.engine import Engine, EngineKind
    from tokgate.config.gate import Deadlines, PhaseFloors, load_gate
    from tokgate.config.profiles import Profile
    from tokgate.server.launch import LaunchSpec, start

    gate = load_gate(Path(__file__).parents[2] / "perf_tests" / "gate.yaml")
    floors = gate.deadlines.floors["gpu"].model_dump()
    scaled = {name: seconds / job["scale"] for name, seconds in floors.items()}
    folder = Path(job["folder"])
    kind: EngineKind = job["kind"]
    began(job)
    server = start(
        LaunchSpec(
            profile=Profile(name="eagle3"),
            engine=Engine(name=kind, kind=kind, version=job["version"]),
            argv=tuple(command(job)),
            env={},
            host="127.0.0.1",
            port=job["port"],
            log_path=folder / "engine.log",
            forensics_dir=folder / "forensics",
            deadlines=PhaseFloors(**{**scaled, **job["floors"]}),
            teardown_s=Deadlines().teardown_s / job["scale"],
        )
    )
    return lambda: void(server.stop())


def sglang_launcher(job: Job) -> Stop:
    """``popen_launch_server`` and ``kill_process_tree`` as installed; its 10 s between looks are scaled too."""
    with contextlib.suppress(ImportError):
        # tokgate's start script of a CPU environment declares what torchvision lacks there.
        import launch_server  # type: ignore[import-not-found]  # noqa: F401
    from sglang.srt.utils import kill_process_tree  # type: ignore[import-not-found]

    test_utils = _imported("sglang.test.test_utils", job)
    scaled = types.SimpleNamespace(**vars(time))
    scaled.sleep = lambda seconds: time.sleep(seconds / job["scale"])
    test_utils.time = scaled
    began(job)
    process = test_utils.popen_launch_server(
        job["model"],
        f"http://127.0.0.1:{job['port']}",
        timeout=job.get("launch_s", SGLANG_LAUNCH_S / job["scale"]),
        other_args=job["arguments"],
        device="cuda",
        return_stdout_stderr=(subprocess.DEVNULL, subprocess.DEVNULL),
    )
    return lambda: void(kill_process_tree(process.pid))


class _StandIn(types.ModuleType):
    """A module that is not installed. What is taken from it is there, and does nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _imported(name: str, job: Job) -> Any:
    """A module of SGLang's tests, with stand-ins for what only its benchmarks and evaluations need."""
    stood_in: list[str] = job.setdefault("stood_in", [])
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not error.name or error.name in stood_in or error.name.startswith("sglang"):
                raise
            stood_in.append(error.name)
            sys.modules[error.name] = _StandIn(error.name)


def vllm_launcher(job: Job) -> Stop:
    """As vLLM's ``RemoteOpenAIServer``: look at /health until a timeout; terminate, wait, kill the root."""
    began(job)
    process = subprocess.Popen(command(job), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop() -> None:
        process.terminate()
        try:
            process.wait(VLLM_TERM_S / job["scale"])
        except subprocess.TimeoutExpired:
            process.kill()

    until = time.monotonic() + job.get("launch_s", VLLM_LAUNCH_S / job["scale"])
    try:
        _wait_for_health(job, process, until)
    except RuntimeError:
        # Releases differ in whether a failed start is terminated at all; here it always is.
        stop()
        raise
    return stop


def _wait_for_health(job: Job, process: subprocess.Popen[bytes], until: float) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{job['port']}/health") as answer:
                if answer.status == 200:
                    return
        except OSError:
            if process.poll():
                raise RuntimeError("Server exited unexpectedly.") from None
            if time.monotonic() > until:
                raise RuntimeError("Server failed to start in time.") from None
        time.sleep(VLLM_POLL_S / job["scale"])


def command(job: Job) -> list[str]:
    """What all three launch."""
    return [
        job["shim"], "serve", "--model-path", job["model"], *job["arguments"], "--host", "127.0.0.1",
        "--port", str(job["port"]),
    ]  # fmt: skip


def began(job: Job) -> None:
    """Imports are done: the clock runs."""
    job["began_s"] = time.monotonic()


def void(_: object) -> None:
    """Nothing of a value."""


def main() -> None:
    job: Job = json.loads(sys.argv[1])
    launcher = {"tokgate": tokgate_launcher, "sglang": sglang_launcher, "vllm-style": vllm_launcher}[
        job["launcher"]
    ]
    stop: Stop | None = None
    try:
        stop = launcher(job)
        verdict = "ready"
    except Exception as error:
        if "began_s" not in job:
            raise
        verdict = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    verdict_s = time.monotonic() - job["began_s"]
    if stop is not None:
        stop()
    told = {
        "verdict": verdict[:160].replace("|", "/"),
        "verdict_s": verdict_s,
        "ended_s": time.monotonic() - job["began_s"],
    }
    if job.get("stood_in"):
        print(f"not installed, stood in for: {', '.join(job['stood_in'])}", file=sys.stderr)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
