"""Reads .github/workflows, and runs the scripts of a job's steps as GitHub does: in order, by their `if`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
NEEDED = re.compile(r"needs\.(\w+)\.outputs\.(\w+) == '(\w+)'")
OUTPUT = re.compile(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes the key `on` for a truth value; GitHub does not."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def workflow(path: Path) -> dict[str, Any]:
    """A workflow, parsed."""
    loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    assert isinstance(loaded, dict)
    return loaded


@dataclass
class Job:
    """Runs the scripts of a job's steps in a copy of the repository.

    Attributes:
        folder: of the repository.
        env: of every step.
        temp: where GITHUB_OUTPUT and GITHUB_STEP_SUMMARY lie.
        ran: script to exit code, in order.
    """

    folder: Path
    env: Mapping[str, str]
    temp: Path
    ran: dict[str, int] = field(default_factory=dict)
    said: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(self, job: Mapping[str, Any], needs: Mapping[str, Mapping[str, str]]) -> bool:
        """Run all steps that have a script; whether the job succeeded."""
        failed = False
        for step in job["steps"]:
            if "run" not in step or not self._wanted(step.get("if"), failed, needs):
                continue
            failed = not self._step(step) or failed
        return not failed

    def _wanted(self, condition: str | None, failed: bool, needs: Mapping[str, Mapping[str, str]]) -> bool:
        if condition == "always()":
            return True
        if condition is None:
            return not failed
        found = NEEDED.fullmatch(condition)
        assert found, f"a condition that this test does not know: {condition}"
        return not failed and needs[found[1]].get(found[2]) == found[3]

    def _step(self, step: Mapping[str, Any]) -> bool:
        output = self.temp / "output"
        output.write_text("")
        env = {**os.environ, **self.env, "GITHUB_OUTPUT": str(output)}
        env["GITHUB_STEP_SUMMARY"] = str(self.temp / "summary.md")
        for name, value in step.get("env", {}).items():
            found = OUTPUT.fullmatch(value)
            if found:
                env[name] = self.outputs[found[1]][found[2]]
        # As GitHub's default shell.
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.ran[step["run"]] = done.returncode
        self.said += f"$ {step['run']}\n{done.stdout}"
        pairs = (line.partition("=") for line in output.read_text().splitlines())
        self.outputs[step.get("id", "")] = {name: value for name, _, value in pairs}
        return done.returncode == 0
