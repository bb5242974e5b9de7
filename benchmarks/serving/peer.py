"""``sglang.bench_serving`` beside ``tokgate.load``: its runs, and what tokgate's own data give by its definitions."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tokgate.config.engine import Engine
from tokgate.config.workloads import Workload
from tokgate.errors import HostFault
from tokgate.load.measurement import Measurement

DRIVER = Path(__file__).parent / "driver.py"
# name -> (tokgate's metric, factor, bench_serving's field): what each tool calls it.
METRICS: Mapping[str, tuple[str, float, str]] = {
    "output tok/s": ("output_tok_s", 1, "output_throughput"),
    "TTFT p50, ms": ("ttft_s_p50", 1e3, "median_ttft_ms"),
    "gap (ITL) p50, ms": ("step_ms_p50", 1, "median_itl_ms"),
    "gap (ITL) p99, ms": ("step_ms_p99", 1, "p99_itl_ms"),
    "TPOT p50, ms": ("tpot_ms_p50", 1, "median_tpot_ms"),
    "accept length": ("accept_length", 1, "accept_length"),
}


class Driver:
    """A process in the engine's environment that runs ``bench_serving`` on demand.

    Args:
        engine: whose environment has SGLang.
        folder: receives its log and each run's.
        cpus: to which it is bound, if to any.
    """

    def __init__(self, engine: Engine, folder: Path, cpus: Sequence[int] = ()) -> None:
        self._folder = folder
        self._runs = 0
        self.version = ""
        self.data_sets: tuple[str, ...] = ()
        folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, **engine.env}
        if engine.pythonpath:
            env["PYTHONPATH"] = os.pathsep.join(engine.pythonpath)
        first = engine.launcher[:1] if engine.launcher[0].endswith(".py") else ()
        with (folder / "driver.log").open("wb") as errors:
            self._process = subprocess.Popen(
                [engine.python, str(DRIVER), *first],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=env,
                start_new_session=True,
                preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
            )

    def ready(self, within_s: float) -> None:
        """Wait until it has imported SGLang.

        Raises:
            HostFault: it has not, or not in time.
        """
        words = self._answer(within_s)
        if words[:1] != ["ready"]:
            lines = (self._folder / "driver.log").read_text(errors="replace").splitlines()[-4:]
            raise HostFault(f"bench_serving cannot be imported within {within_s:.0f} s", lines)
        self.version, self.data_sets = words[1], tuple(words[2:])

    @property
    def takes_prompts(self) -> bool:
        """Whether it can be given token ids (0.5.15); else its random ones must do (0.5.23 dropped that)."""
        return "autobench" in self.data_sets

    def run(self, arguments: Sequence[str], within_s: float) -> dict[str, object]:
        """One run; returns its result, with ``cpu_s`` and ``wall_s`` of its process.

        Raises:
            HostFault: it failed or did not end in time; the driver is of no more use then.
        """
        self._runs += 1
        log = self._folder / f"run{self._runs}.log"
        result = self._folder / f"run{self._runs}.jsonl"
        assert self._process.stdin is not None
        argv = [*arguments, "--output-file", str(result)]
        try:
            self._process.stdin.write(json.dumps({"argv": argv, "log": str(log)}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise HostFault("bench_serving: its process is gone") from None
        words = self._answer(within_s)
        if words[:2] != ["done", "0"] or not result.exists():
            said = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
            if not words:
                self.close()
                raise HostFault(f"bench_serving did not end within {within_s:.0f} s", said)
            raise HostFault(f"bench_serving failed with exit code {words[1]}", said)
        found = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
        # Not the lists; and its request rate is infinite, which no JSON number is.
        kept = {key: value for key, value in found.items() if isinstance(value, (int, float, str))}
        kept = {key: value for key, value in kept.items() if isinstance(value, str) or math.isfinite(value)}
        return {**kept, "cpu_s": float(words[2]), "wall_s": float(words[3])}

    def close(self) -> None:
        """End the process and the run that may be in it."""
        self._kill()
        self._process.communicate()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _answer(self, within_s: float) -> list[str]:
        """Words of the next line; empty when none comes in time."""
        assert self._process.stdout is not None
        timer = threading.Timer(max(0.1, within_s), self._kill)
        timer.start()
        try:
            return self._process.stdout.readline().split()
        finally:
            timer.cancel()


def arguments(url: str, model: Path, load: Workload, dataset: Path | None) -> list[str]:
    """The command line of ``bench_serving`` for a closed loop.

    Args:
        url: of the server.
        model: folder with a tokenizer.
        load: what tokgate asks for.
        dataset: of :func:`write_dataset`; without it random token ids in the same lengths.
    """
    chosen = ["--dataset-name", "autobench", "--dataset-path", str(dataset)]
    if dataset is None:
        lengths = (
            "--random-input-len",
            load.prompts.length_tokens,
            "--random-output-len",
            load.output_tokens,
        )
        chosen = ["--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1"]
        chosen += map(str, lengths)
    return [
        *("--backend", "sglang", "--base-url", url, "--model", str(model), "--tokenizer", str(model)),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency), *chosen),
        *("--warmup-requests", "1", "--flush-cache", "--disable-tqdm", "--ready-check-timeout-sec", "0"),
    ]


def write_dataset(path: Path, prompts: Sequence[Sequence[int]], output_tokens: int) -> None:
    """The prompts as ``bench_serving`` reads them: the same token ids that tokgate sends."""
    rows = [{"prompt": list(ids), "prompt_len": len(ids), "output_len": output_tokens} for ids in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def ours(measured: Measurement) -> dict[str, float]:
    """tokgate's figures, by the names of :data:`METRICS`."""
    found = measured.metrics
    return {name: found[key] * scale for name, (key, scale, _) in METRICS.items() if key in found}


def theirs(result: Mapping[str, object]) -> dict[str, float]:
    """bench_serving's figures, by the names of :data:`METRICS`."""
    found = {name: result.get(field) for name, (_, _, field) in METRICS.items()}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def by_their_definitions(measured: Measurement, info_s: float) -> dict[str, float]:
    """What tokgate's data give when reckoned as ``bench_serving`` (0.5.15 to 0.5.23) reckons.

    Args:
        measured: one run.
        info_s: how long the server takes to answer ``GET /server_info``: bench_serving asks that before it
            stops its clock.
    """
    line = measured.timeline
    answered = [i for i, r in enumerate(measured.requests) if r.outcome == "ok"]
    requests = [measured.requests[i] for i in answered]
    following = (line.owner[1:] == line.owner[:-1]) & (line.added[1:] > 0)
    gaps_ms = np.diff(line.t_s)[following] * 1e3
    brought = line.added[1:][following]
    # An event's gap is spread over its tokens, and counted once for each of them.
    per_token_ms = np.repeat(gaps_ms / brought, brought)
    tokens = sum(r.completion_tokens or 0 for r in requests)
    tpot_ms = [
        ((r.last_token_s or 0) - (r.first_token_s or 0)) / ((r.completion_tokens or 0) - 1) * 1e3
        for r in requests
        if (r.completion_tokens or 0) > 1
    ]
    found = {
        "output tok/s": tokens / (measured.duration_s + info_s),
        "TTFT p50, ms": measured.metrics["ttft_s_p50"] * 1e3,
        "gap (ITL) p50, ms": float(np.median(per_token_ms)),
        "gap (ITL) p99, ms": float(np.percentile(per_token_ms, 99)),
        "TPOT p50, ms": float(np.median(tpot_ms)),
    }
    # The server's own counter takes in drafts that were accepted past the requested length.
    told = [r for r in requests if r.accept_histogram and r.verify_count]
    if told:
        accepted = sum(i * passes for r in told for i, passes in enumerate(r.accept_histogram or ()))
        found["accept length"] = 1 + accepted / sum(r.verify_count or 0 for r in told)
    return found
