"""A recorded run of the matrix, judged again: the same verdicts as on the GPU, from what an asset keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from tokgate.analysis.cycles import Cycles
from tokgate.analysis.roofline import Roofline, roofline
from tokgate.config.gate import load_gate
from tokgate.config.profiles import Profile, load_profiles
from tokgate.config.workloads import Workload, load_workloads
from tokgate.gate.comparisons import Comparisons
from tokgate.gate.cycle.break_even import state_of
from tokgate.gate.cycle.launches import judge_launches
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.cycle.traces import Traced, read
from tokgate.gate.cycle.verify_passes import VerifyPasses
from tokgate.gate.draft_steps import DraftSteps, draft_steps
from tokgate.gate.facts import ServerFacts
from tokgate.gate.judge import SPEED
from tokgate.gate.pairs import eager_partner, has_mode_decode, prefill_partner
from tokgate.gate.runs import Measured
from tokgate.load.sample import Sample, read_samples
from tokgate.models.dial import Dial
from tokgate.models.maker import tensors_of
from tokgate.models.presets import find_preset
from tokgate.models.rule import build_rule
from tokgate.models.traffic import EMBEDDING, Traffic
from tokgate.report.explain_trace import roofline_line, target_ms
from tokgate.verdict import Verdict

CONFIG = Path(__file__).parent / "config"
SLOW_CPU = "slow_cpu"
"""A cause of void runs that met all runs of some cases alike: the usual state of that host that evening."""
ARCHITECTURES = ("LlamaForCausalLM",)


@dataclass(frozen=True)
class Record:
    """What ``benchmarks.speculation.record`` cut out of a run.

    Attributes:
        folder: of the asset.
    """

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Of the servers and the memory."""
        return dict(json.loads((self.folder / "facts.json").read_text(encoding="utf-8")))

    @cached_property
    def run(self) -> dict[str, Any]:
        """``run.json``."""
        return dict(json.loads((self.folder / "run.json").read_text(encoding="utf-8")))

    @cached_property
    def samples(self) -> list[Sample]:
        """All, void ones too."""
        return read_samples(self.folder / "samples.json")

    @cached_property
    def workloads(self) -> list[Workload]:
        """Those of the run."""
        known = load_workloads(CONFIG / "workloads.yaml", "gpu")
        return [known.get(name) for name in self.run["workloads"]]

    @cached_property
    def profiles(self) -> list[Profile]:
        """Those that were measured, references first, as they were measured."""
        known = load_profiles(CONFIG / "profiles.yaml")
        order = dict.fromkeys(
            s.identity.profile
            for s in sorted(self.samples, key=lambda s: s.identity.started_at)
            if s.identity.workload_digest
        )
        return [known.get(name) for name in order]

    def measured(self, profile: str, workload: str) -> Measured | None:
        """Runs of a case; ``None`` when there are none that count.

        Where fewer than two do, those count too that are void by :data:`SLOW_CPU` alone.
        """
        mine = self._runs(profile, workload)
        good = [s for s in mine if not s.void]
        if len(good) < 2:
            good = [s for s in mine if {void.cause for void in s.void} <= {SLOW_CPU}]
        void = [s for s in mine if s not in good]
        if not good:
            return None
        files = tuple(Path(f"{profile}/{workload}/{s.identity.run}.json") for s in good)
        return Measured(tuple(good), tuple(void), files)

    def slowed(self) -> list[str]:
        """Cases that are judged by runs on a slow CPU, since no two others were made."""
        cases = [
            (p.name, w.name) for p in self.profiles for w in self.workloads if self.measured(p.name, w.name)
        ]
        return [f"{w}[{p}]" for p, w in cases if sum(not s.void for s in self._runs(p, w)) < 2]

    def _runs(self, profile: str, workload: str) -> list[Sample]:
        return [s for s in self.samples if (s.identity.profile, s.identity.workload) == (profile, workload)]

    def traced(self, profile: str, workload: str) -> Traced | None:
        """The trace of a case; ``None`` when none was taken."""
        return self._traces.get(f"{profile}-{workload}")

    def cycles(self, profile: str, workload: str) -> Cycles | None:
        """Of the same."""
        found = self.traced(profile, workload)
        return None if found is None else found.cycles

    def floor(self, profile: Profile, workload: Workload) -> Roofline | None:
        """The target's pass against the memory's bandwidth, as measured in the run."""
        cycles, speed = self.cycles(profile.name, workload.name), self.facts["bandwidth_gb_s"]
        measured = self.measured(profile.name, workload.name)
        if cycles is None or speed is None or measured is None:
            return None
        return roofline(
            reads(measured.samples[0].identity.model.partition("@")[0]),
            step_ms=target_ms(cycles),
            context_tokens=workload.prompts.length_tokens or 0,
            requests=workload.concurrency,
            bandwidth_bytes_s=speed * 1e9,
        )

    def verdicts(self) -> Iterator[Verdict]:
        """What can be judged of what was measured: net gain, graph launches, graphs on and off, attention mode."""
        gate = load_gate(CONFIG / "gate.yaml")
        comparisons = Comparisons(gate)
        for profile in self.profiles:
            for workload in self.workloads:
                one = self.measured(profile.name, workload.name)
                if one is None:
                    continue
                traced = self.traced(profile.name, workload.name)
                if traced is not None:
                    held = self.floor(profile, workload)
                    lines = [] if held is None or traced.cycles is None else [
                        f"roofline: {roofline_line(held, traced.cycles.anchor)}"
                    ]  # fmt: skip
                    yield judge_launches(profile, one, traced, lines)
                reference = profile.reference and self.measured(profile.reference, workload.name)
                if reference:
                    cycles = None if traced is None else traced.cycles
                    yield judge_net_gain(workload, one, reference, cycles, self._passes.like(one))
                yield from self._compared(comparisons, profile, workload, one)

    def model(self, profile: Profile, workload: Workload) -> DraftSteps | None:
        """The model of draft steps of a case."""
        measured, cycles = (
            self.measured(profile.name, workload.name),
            self.cycles(profile.name, workload.name),
        )
        reference = profile.reference and self.measured(profile.reference, workload.name)
        if measured is None or cycles is None or not reference:
            return None
        state = state_of(measured, fmean(reference.series(SPEED)) / workload.concurrency)
        return None if state is None else draft_steps(state, measured, cycles, self._passes.like(measured))

    def _compared(
        self, comparisons: Comparisons, profile: Profile, workload: Workload, one: Measured
    ) -> Iterator[Verdict]:
        eager = eager_partner(profile, self.profiles)
        if eager and (off := self.measured(eager.name, workload.name)):
            yield comparisons.graphs(one, off)
        if has_mode_decode(profile):
            other = prefill_partner(profile, self.profiles)
            against = other and self.measured(other.name, workload.name)
            yield comparisons.attention_mode(one, against or None, self._facts_of(profile))

    def _facts_of(self, profile: Profile) -> ServerFacts:
        told = self.facts["servers"][profile.name]
        return ServerFacts(told["captures"], told["hybrid_line"], ARCHITECTURES, Path(f"{profile.name}.log"))

    @cached_property
    def _traces(self) -> dict[str, Traced]:
        files = sorted((self.folder / "traces").glob("*.json.gz"))
        return {file.name.removesuffix(".json.gz"): read([file]) for file in files}

    @cached_property
    def _passes(self) -> VerifyPasses:
        passes = VerifyPasses()
        for profile in self.profiles:
            for workload in self.workloads:
                if measured := self.measured(profile.name, workload.name):
                    passes.add(measured, self.cycles(profile.name, workload.name), workload.concurrency)
        return passes


@cache
def reads(preset: str) -> Traffic:
    """What a step of a synthetic pair's target reads."""
    found = find_preset(preset)
    rule = build_rule(found, 0, Dial("accept_length", 2.5, 3), None)
    weights = sum(t.nbytes for t in tensors_of(rule, "target") if not t.name.endswith(EMBEDDING))
    return Traffic(weights, 2 * found.layers * found.kv_heads * found.head_dim * 2)
