"""Questions: what each test of the gate asks of a run, answered by a verdict from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tokgate.analysis.parity_case import Case
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import TokgateError, UsageFault
from tokgate.gate import modelstore, parity
from tokgate.gate.blocks.settling import LEFT_OPEN, Asked, Settling, open_questions
from tokgate.gate.blocks.words import Claim
from tokgate.gate.campaign import Campaign
from tokgate.gate.comparisons import Comparisons
from tokgate.gate.cycle.launches import judge_launches
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.cycle.rooflines import Rooflines
from tokgate.gate.cycle.verify_passes import VerifyPass, VerifyPasses
from tokgate.gate.judge import SPEED, Judge
from tokgate.gate.margin import speed_margin
from tokgate.gate.pairs import ATTENTION_MODE, GRAPHS
from tokgate.gate.runs import Measured
from tokgate.gate.setup import Setup
from tokgate.gate.start import Starter
from tokgate.gate.visit import Visit
from tokgate.load import prompts
from tokgate.verdict import Kind, Verdict


class Questions:
    """One method a question. Raises what the server of the profile asked about failed with.

    Args:
        setup: the checked request.
        campaign: its servers.
        starter: knows which model a profile serves.
        judge: holds the stored baselines and the error rate of a verdict.
        settling: decides by blocks what one launch a side leaves open; ``None`` without a budget.
        measured: workloads of this run.
        cases: of greedy parity, by name.
        folder: where a case on which outputs differ is written.
    """

    def __init__(
        self,
        setup: Setup,
        campaign: Campaign,
        starter: Starter,
        judge: Judge,
        settling: Settling | None,
        *,
        measured: Sequence[Workload],
        cases: Mapping[str, Case],
        folder: Path,
    ) -> None:
        self._setup = setup
        self._campaign = campaign
        self._starter = starter
        self._judge = judge
        self._settling = settling
        self._measured = tuple(measured)
        self._cases = cases
        self._folder = folder
        self._comparisons = Comparisons(setup.gate)
        self._rooflines = Rooflines(setup.engine, starter)
        self._verify_passes = VerifyPasses()

    def against_baseline(self, visit: Visit, workload: Workload, metric: str) -> Verdict:
        """One gated metric against its stored baseline; what that, or its lack, leaves open: by blocks."""
        measured = visit.measured(workload)
        verdict = self._judge.against_baseline(measured, metric, concurrency=workload.concurrency)
        if verdict.kind not in LEFT_OPEN or self._settling is None or self._setup.reference is None:
            return verdict
        asked = Asked(workload.name, metric, measured.samples[0].identity)
        open_ = open_questions(visit, self._measured, self._judge)
        return self._settling.build(verdict, asked, open_, self._measured) if asked in open_ else verdict

    def accept_length(self, visit: Visit, workload: Workload) -> Verdict:
        """Accept length: exactly, where the model's is known beforehand; else against the stored baseline."""
        measured = visit.measured(workload)
        asked = visit.profile.speculation
        if asked is None or asked.steps is None or asked.topk != 1:
            return self._judge.stored_accept_length(measured)
        served = self._starter.served(visit.profile)
        ids = prompts.build(workload, served.vocabulary).ids or ()
        known = modelstore.known_verify_counts(served.folder, ids, workload.output_tokens, asked.steps)
        if known is None:
            return self._judge.stored_accept_length(measured)
        return self._judge.accept_length(measured, known)

    def net_gain(self, visit: Visit, workload: Workload) -> Verdict:
        """A speculative profile against its reference: is speculation a gain, and what stands in its way; what
        one launch a side leaves open, by blocks, within the budget."""
        measured = visit.measured(workload)
        reference = self._setup.profiles[self._reference(visit.profile)]
        traced = visit.traced(workload) if self._setup.request.trace_steps else None
        cycles = None if traced is None else traced.cycles
        passes = self._verify_passes_like(visit, measured) if traced else ()
        against = self._campaign.visit(reference.name).measured(workload)
        verdict = judge_net_gain(workload, measured, against, cycles, passes, speed_margin(self._setup.gate))
        return self._against_profile(verdict, measured, reference.name, workload, "gain")

    def replay(self, visit: Visit, workload: Workload) -> Verdict:
        """Whether the CUDA graphs of a profile were captured and used."""
        measured = visit.measured(workload)
        return self._comparisons.replay(workload, visit.profile, measured, visit.facts())

    def launches(self, visit: Visit, workload: Workload) -> Verdict:
        """Whether every part of a step is launched as its graph, from a trace of the profiler."""
        measured, traced = visit.measured(workload), visit.traced(workload)
        return judge_launches(visit.profile, measured, traced, self._rooflines.lines(visit, workload))

    def graphs(self, visit: Visit, workload: Workload) -> Verdict:
        """A profile against the same without CUDA graphs.

        Raises:
            UsageFault: no profile of this run is that.
        """
        measured = visit.measured(workload)
        partner = self._setup.partner(visit.profile.name, GRAPHS)
        if partner is None:
            raise UsageFault(f"no profile of this run is '{visit.profile.name}' without CUDA graphs")
        verdict = self._comparisons.graphs(measured, self._campaign.visit(partner).measured(workload))
        return self._against_profile(verdict, measured, partner, workload, "gain")

    def attention_mode(self, visit: Visit, workload: Workload) -> Verdict:
        """A profile with attention mode decode against the same with prefill, where one is in this run."""
        measured = visit.measured(workload)
        partner = self._setup.partner(visit.profile.name, ATTENTION_MODE)
        other = None if partner is None else self._campaign.visit(partner).measured(workload)
        verdict = self._comparisons.attention_mode(measured, other, visit.facts())
        return (
            verdict
            if partner is None
            else self._against_profile(verdict, measured, partner, workload, "no loss")
        )

    def parity(self, name: str, visit: Visit) -> Verdict:
        """Greedy parity of a profile with its reference, on one case."""
        case = self._cases[name]
        reference = self._reference(visit.profile)
        wanted = self._campaign.visit(reference).answers(name)
        asked = [request.prompt_ids for request in case.requests]
        truth = modelstore.known_outputs(
            self._starter.served(visit.profile).folder, asked, case.requests[0].new_tokens
        )
        return parity.judge(
            name,
            case,
            visit.profile.name,
            parity.Parties(f"compared with '{reference}' without speculation", f"'{reference}'"),
            wanted,
            visit.answers(name),
            truth,
            self._folder / "parity",
        )

    def _against_profile(
        self, verdict: Verdict, measured: Measured, other: str, workload: Workload, claim: Claim
    ) -> Verdict:
        """A verdict on the speed of two profiles; what one launch a side left open, by blocks, within the budget."""
        open_ = verdict.kind is Kind.INCONCLUSIVE and verdict.evidence.get("speed_decides", True)
        if not open_ or self._settling is None:
            return verdict
        asked = Asked(workload.name, SPEED, measured.samples[0].identity)
        return self._settling.profile(verdict, asked, self._setup.profiles[other], (workload,), claim)

    def _verify_passes_like(self, visit: Visit, measured: Measured) -> Sequence[VerifyPass]:
        """Verify passes of the same target: of this profile's other workloads, and of profiles traced before."""
        for workload in self._measured:
            with suppress(TokgateError):
                found = visit.measured(workload), visit.traced(workload).cycles
                self._verify_passes.add(*found, workload.concurrency)
        return self._verify_passes.like(measured)

    def _reference(self, profile: Profile) -> str:
        """Name of the profile that a profile is held against.

        Raises:
            UsageFault: it has none.
        """
        if profile.reference is None:
            raise UsageFault(f"profile '{profile.name}' has no reference in profiles.yaml")
        return profile.reference
