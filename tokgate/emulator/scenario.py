"""Scenario files: how long an emulated engine takes for everything, and how that scatters.

Read and checked once, before the server processes exist, which get a plain dictionary: pydantic never
enters their memory. Times are milliseconds or seconds, as the names say.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, model_validator

from tokgate.config.document import Document, Section, nearest
from tokgate.errors import UsageFault

FOLDER = Path(__file__).parent / "scenarios"
CONDITIONS = (
    "baseline",
    "baseline_eager",
    "eagle3",
    "eagle3_eager",
    "eagle3_attention_decode",
    "eagle3_eager_attention_decode",
)


class NoiseSection(Section):
    """Scatter of a run's speed: one factor for all its steps.

    ``lognormal``: median 1. ``one-sided``: only slower, half-normal. ``recorded``: the ``speeds`` in turn
    (relative to the condition's nominal speed) as long as the launch seed is the scenario's own, so
    that a first demonstration repeats what was recorded; other launch seeds draw lognormal with ``sd``.
    """

    kind: Literal["none", "lognormal", "one-sided", "recorded"]
    sd: float = Field(default=0.0, ge=0, le=1)
    speeds: list[float] = []

    @model_validator(mode="after")
    def _consistent(self) -> NoiseSection:
        if (self.kind == "recorded") != bool(self.speeds):
            raise ValueError("'speeds' belong to kind 'recorded', which needs them")
        if any(speed <= 0 for speed in self.speeds):
            raise ValueError("'speeds' must be positive")
        return self


class ConditionSection(Section):
    """Costs under one combination of speculation, graphs and attention mode.

    Either ``step_ms`` (one token a step), or ``verify_ms`` and ``draft_ms`` with ``gap_ms`` (time of a
    cycle in no kernel) and an accept length, as a mean or as acceptance per draft position.
    """

    step_ms: float | None = Field(default=None, gt=0)
    verify_ms: float | None = Field(default=None, gt=0)
    draft_ms: float | None = Field(default=None, ge=0)
    draft_extend_ms: float = Field(default=0.0, ge=0)
    gap_ms: float = Field(default=0.0, ge=0)
    accept_length: float | None = Field(default=None, ge=1)
    acceptance: list[float] | None = None
    prefill_ms: float = Field(default=10.0, ge=0)
    prefill_us_per_token: float = Field(default=0.0, ge=0)
    batch_percent: float = Field(default=1.0, ge=0)
    step_jitter: float = Field(default=0.0, ge=0, le=0.5)
    noise: NoiseSection | None = None
    launch_sd: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _consistent(self) -> ConditionSection:
        if self.step_ms is not None:
            if self.verify_ms is not None or self.draft_ms is not None:
                raise ValueError("give 'step_ms', or 'verify_ms' and 'draft_ms', not both")
            if self.accept_length is not None or self.acceptance is not None:
                raise ValueError("a condition with 'step_ms' has no acceptance")
            return self
        if self.verify_ms is None or self.draft_ms is None:
            raise ValueError("give 'step_ms', or 'verify_ms' and 'draft_ms'")
        if (self.accept_length is None) == (self.acceptance is None):
            raise ValueError("give either 'accept_length' or 'acceptance'")
        if self.acceptance is not None and any(not 0 <= p <= 1 for p in self.acceptance):
            raise ValueError("'acceptance' holds probabilities, 0 to 1")
        return self


class StartupSection(Section):
    """Length of each start-up phase, seconds; ``capture_s`` by kind of CUDA graph."""

    spawn_s: float = Field(default=0.02, ge=0)
    imports_s: float = Field(default=0.03, ge=0)
    weights_s: float = Field(default=0.03, ge=0)
    kv_cache_s: float = Field(default=0.01, ge=0)
    capture_target_s: float = Field(default=0.03, ge=0)
    capture_draft_s: float = Field(default=0.02, ge=0)
    capture_draft_extend_s: float = Field(default=0.02, ge=0)


class HttpSection(Section):
    """Times of the HTTP front, seconds. SGLang's own: health probe 1, its time-out 20, settling 5."""

    health_s: float = Field(default=0.05, ge=0)
    health_timeout_s: float = Field(default=2.0, gt=0)
    settle_s: float = Field(default=0.05, ge=0)


class ScenarioFile(Section):
    """Schema of a scenario file. ``architecture`` is what ``/model_info`` names; it costs nothing."""

    description: str
    architecture: str = "LlamaForCausalLM"
    seed: int = 0
    run_gap_s: float = Field(default=0.5, gt=0)
    noise: NoiseSection = NoiseSection(kind="none")
    launch_sd: float = Field(default=0.0, ge=0, le=1)
    startup: StartupSection = StartupSection()
    http: HttpSection = HttpSection()
    baseline: ConditionSection | None = None
    baseline_eager: ConditionSection | None = None
    eagle3: ConditionSection | None = None
    eagle3_eager: ConditionSection | None = None
    eagle3_attention_decode: ConditionSection | None = None
    eagle3_eager_attention_decode: ConditionSection | None = None


def names() -> list[str]:
    """Scenarios that come with tokgate."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def locate(name: str) -> Path:
    """The file of a scenario, by name or path.

    Raises:
        UsageFault: neither; names the nearest known one.
    """
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        return path
    if name in names():
        return FOLDER / f"{name}.yaml"
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UsageFault(f"no scenario '{name}'; {hint}known: {', '.join(names())}, or a .yaml file")


class Scenario:
    """One scenario, with overrides laid over its file.

    Args:
        name: a packaged scenario or a path.
        overrides: ``KEY=VALUE`` with a dotted key of the file and a YAML value: ``baseline.step_ms=13.3``.

    Raises:
        UsageFault: no such scenario, or a malformed override.
        ConfigFault: every fault of the file, with its line.
    """

    def __init__(self, name: str, overrides: list[str]) -> None:
        self.name = Path(name).stem
        document = Document(locate(name))
        document.validate(ScenarioFile)
        for override in overrides:
            _apply(document.data, override)
        self._document = document
        self.file = document.validate(ScenarioFile)
        for condition in CONDITIONS:
            self._check(condition)
        document.check()

    def _check(self, condition: str) -> None:
        section: ConditionSection | None = getattr(self.file, condition)
        if section is None:
            return
        speculative = condition.startswith("eagle3")
        if speculative and section.step_ms is not None:
            self._document.fault(
                (condition, "step_ms"), "a speculative condition needs verify_ms and draft_ms"
            )
        if not speculative and section.step_ms is None:
            self._document.fault((condition,), "a condition without speculation needs step_ms")

    def plan(self, condition: str) -> dict[str, Any]:
        """Everything that the server processes need, as plain values.

        Raises:
            UsageFault: the scenario says nothing about that condition.
        """
        section: ConditionSection | None = getattr(self.file, condition)
        if section is None:
            given = [c for c in CONDITIONS if getattr(self.file, c) is not None]
            raise UsageFault(
                f"scenario '{self.name}' has no figures for {condition.replace('_', ' ')} "
                f"(key '{condition}'); it has: {', '.join(given)}"
            )
        costs = section.model_dump()
        costs["noise"] = costs["noise"] or self.file.noise.model_dump()
        if costs["launch_sd"] is None:
            costs["launch_sd"] = self.file.launch_sd
        return {
            "scenario": self.name,
            "condition": condition,
            "architecture": self.file.architecture,
            "seed": self.file.seed,
            "run_gap_s": self.file.run_gap_s,
            "costs": costs,
            "startup": self.file.startup.model_dump(),
            "http": self.file.http.model_dump(),
        }


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UsageFault(f"--scenario-override '{override}': expected KEY=VALUE, like baseline.step_ms=13.3")
    if parts[0] not in ScenarioFile.model_fields:
        raise UsageFault(
            f"--scenario-override '{override}': unknown key; {nearest(parts[0], list(ScenarioFile.model_fields))}"
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageFault(f"--scenario-override '{override}': the value is not valid YAML") from error
    inner = data
    for part in parts[:-1]:
        deeper = inner.setdefault(part, {})
        if not isinstance(deeper, dict):
            raise UsageFault(f"--scenario-override '{override}': '{part}' holds a single value")
        inner = deeper
    inner[parts[-1]] = value
