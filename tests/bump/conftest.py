"""Bumps and bisections on virtual servers, and emulated ones with deadlines that a busy machine can hold."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bump.simulation import CONFIG, VERSIONS, ask_of
from benchmarks.bump.virtual_servers import Clock, maker
from tokgate.bump.campaign import Campaign
from tokgate.verdict import Verdict


@pytest.fixture
def campaign() -> Callable[..., Campaign]:
    """A finished or unfinished virtual bump: ``change`` is the new version's true change of speed."""

    def make(
        change: float = 0.0,
        *,
        seed: int = 3,
        folder: Path | None = None,
        hangs: tuple[str, ...] = (),
        before: Callable[[str], None] = lambda what: None,
        profiles: tuple[str, ...] = ("baseline",),
        blocks: int = 12,
        minutes: float | None = None,
        run: bool = True,
        metrics: tuple[str, ...] | None = None,
    ) -> Campaign:
        clock = Clock()
        servers = maker(clock, speed={VERSIONS[1]: 1 + change}, hangs=hangs, before=before)
        ask = ask_of(seed, profiles=profiles, blocks=blocks)
        ask = ask if metrics is None else replace(ask, metrics=metrics)
        found = Campaign(ask, servers, folder, clock=clock)
        if run:
            found.run(minutes=minutes)
        return found

    return make


def speed_of(verdicts: list[Verdict], profile: str = "baseline") -> Verdict:
    """The verdict on output_tok_s of a profile."""
    (found,) = [
        v
        for v in verdicts
        if v.evidence.get("metric") == "output_tok_s" and v.evidence.get("profile") == profile
    ]
    return found


@pytest.fixture(scope="session")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of perf_tests with emulator deadlines that do not pass on a busy machine."""
    folder = tmp_path_factory.mktemp("suite") / "perf_tests"
    shutil.copytree(CONFIG, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    gate = folder / "gate.yaml"
    text = gate.read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.strip().startswith("emulated: {spawn_s")]
    floors = (
        "    emulated: {spawn_s: 30, imports_s: 30, weights_s: 20, kv_cache_s: 20, capture_s: 8, "
        "warmup_s: 20, first_token_s: 20}"
    )
    gate.write_text(text.replace(line, floors), encoding="utf-8")
    return folder


@pytest.fixture
def engine_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes an emulated engine file: a version, and a fault planted in it if any."""

    def write(version: str, fault: str = "", name: str | None = None) -> Path:
        path = tmp_path / f"{name or version}.yaml"
        text = f"kind: emulated\nversion: {version}\nscenario: steady\n"
        if fault:
            text += f'env: {{TOKGATE_EMULATOR_FAULT: "{fault}"}}\n'
        path.write_text(text, encoding="utf-8")
        return path

    return write
