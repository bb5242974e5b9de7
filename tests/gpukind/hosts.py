"""A host with GPUs that exist for NVML alone, and engines of kind ``gpu`` on it that are the emulated one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.gate.runs import ROOT, Finished, tokgate
from tokgate.models import maker

HERE = Path(__file__).parent
SMALL = "{output_tokens: 49}"
PARITY = "{prompt_tokens: 24, new_tokens: 16, long_context_tokens: 200, many_prompts: 12}"

CRASHED = re.compile(r"^(\[GPU [\d+]+\] )?(\W*Traceback|INTERNALERROR|E   )", re.MULTILINE)
"""Of Python and of pytest; an engine that dies writes a traceback too, but never at the beginning of our lines."""


class GpuHost:
    """One host. Everything that a command writes is under ``folder``.

    Args:
        gpus: how many H200 it has.
    """

    def __init__(self, folder: Path, gpus: int = 1) -> None:
        self.folder = folder
        self.results, self.baselines = folder / "results", folder / "baselines"
        self._name = uuid.uuid4().hex
        self._gpus = gpus
        self.config = _config(folder / "config")
        self.model = folder / "pair"
        maker.make("tiny", self.model, seed=0, accept_length=2.5)
        # The emulated engine computes nothing: the outputs that this pair would give are not its own.
        (self.model / "truth.json").unlink()

    def engine(self, version: str = "0.5.15.post1", *faults: str, **env: str) -> Path:
        """An engine file, named by its version."""
        asked = ["--scenario", "steady", "--emulated-version", version]
        for fault in faults:
            asked += ["--fault", fault]
        file = self.folder / "engines" / f"{version}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            f"kind: gpu\nversion: {version}\npython: {sys.executable}\npythonpath: [{ROOT}, {HERE / 'site'}]\n"
            f"launcher: [-m, tokgate.emulator, {', '.join(asked)}]\nenv: {env}\n"
        )
        return file

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process see these GPUs."""
        return {
            "PYTHONPATH": f"{HERE / 'nvml'}{os.pathsep}{ROOT}",
            "FAKE_HOST": self._name,
            "FAKE_GPUS": ",".join(["NVIDIA H200"] * self._gpus),
            "TOKGATE_RUNTIME_DIR": str(self.folder / "locks"),
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command; to crash is never an answer."""
        with _all_visible():
            done = tokgate(*arguments, **{**self.environment, **environment})
        told = done.stdout + done.stderr
        assert not CRASHED.search(told), told
        return done

    def measure(self, command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command that measures."""
        return self.run(*command.split(), *self._where, *arguments, **environment)

    def gate(self, *arguments: str, **environment: str) -> Finished:
        """Run the gate."""
        done = self.run(
            "gate",
            "perf_tests",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            *self._where,
            f"--engine={self.engine()}",
            *arguments,
            **environment,
        )
        return Finished(done.returncode, done.stdout + done.stderr, self.results)

    @property
    def _where(self) -> tuple[str, ...]:
        return (
            f"--config-folder={self.config}",
            f"--results={self.results}",
            f"--baselines={self.baselines}",
            f"--model={self.model}",
        )


@contextmanager
def _all_visible() -> Iterator[None]:
    """Whoever runs the tests may have chosen GPUs of his own."""
    before = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def _config(folder: Path) -> Path:
    """The suite's own, with the sizes of the emulated engine, and contention told and not void: time is emulated."""
    folder.mkdir()
    for name in ("profiles", "workloads", "gate"):
        text = (ROOT / "perf_tests" / f"{name}.yaml").read_text()
        text = re.sub(r"^      gpu: \{.*\}$", f"      gpu: {SMALL}", text, flags=re.MULTILINE)
        text = re.sub(r"^  gpu: \{prompt_tokens.*\}$", f"  gpu: {PARITY}", text, flags=re.MULTILINE)
        text = text.replace("    cpu: *contention\n", "    cpu: *contention\n    gpu: *contention\n")
        (folder / f"{name}.yaml").write_text(text)
    return folder
