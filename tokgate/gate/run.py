"""Run: one run of the gate from its results folder to its report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType

from tokgate import __version__
from tokgate.analysis.multiplicity import alpha_per_verdict
from tokgate.analysis.parity_case import Case
from tokgate.config.gate import ParitySizes
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.environments import installed
from tokgate.errors import ResultsUnwritable, TokgateError, UsageFault
from tokgate.gate import modelstore, parity, upkeep
from tokgate.gate.blocks.settling import LEFT_OPEN, Asked, Settling, open_questions
from tokgate.gate.blocks.words import Claim
from tokgate.gate.campaign import Campaign, Planned, Visit
from tokgate.gate.claim import claim
from tokgate.gate.comparisons import Comparisons
from tokgate.gate.cycle.launches import judge_launches
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.cycle.rooflines import Rooflines
from tokgate.gate.cycle.verify_passes import VerifyPass, VerifyPasses
from tokgate.gate.faults import verdict_of
from tokgate.gate.judge import SPEED, Judge
from tokgate.gate.measurement import Measurer
from tokgate.gate.pairs import ATTENTION_MODE, GRAPHS
from tokgate.gate.results import Results, write_text
from tokgate.gate.runs import Measured
from tokgate.gate.setup import Setup
from tokgate.gate.share import of_how_many
from tokgate.gate.start import Starter
from tokgate.load import prompts
from tokgate.report.markdown import report
from tokgate.server.teardown import Teardown
from tokgate.verdict import Kind, Verdict


class Run:
    """A run: the host's GPUs, a results folder, a campaign of servers, judge, verdicts. A context manager.

    Attributes:
        verdicts: all that were reached, in order, stored or not.
        unwritten: what could not be written, and why; the disk is full, say.
        remarks: what else a reader should know, one line each.

    Args:
        setup: the checked request.
        profiles, workloads: names of those that are needed by what was selected.
        with_parity: whether greedy parity is asked for.
        verdicts: how many verdicts are expected, for the error rate of each.
        not_run: names of tests that were left out by selection.

    Raises:
        ResultsUnwritable: the results folder cannot be made.
        HostFault: as :func:`tokgate.gate.claim.claim`.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        profiles: Collection[str],
        workloads: Collection[str],
        with_parity: bool,
        verdicts: int,
        not_run: Sequence[str] = (),
    ) -> None:
        self.setup = setup
        self.verdicts: list[Verdict] = []
        self.unwritten: list[str] = []
        self.remarks: list[str] = []
        self._faults: list[tuple[TokgateError, Verdict]] = []
        self._status = "failed"
        self._interrupted = False
        with ExitStack() as stack:
            warnings = stack.enter_context(claim(setup))
            self.results = Results(setup.request.results, self._facts(profiles, workloads, warnings, not_run))
            stack.callback(self._end)
            self._write(partial(installed.keep, setup.engine, self.results.folder))
            self._starter = Starter(setup, self.results)
            self.cases = self._cases() if with_parity else {}
            # A verdict that two rules may reach, the stored baseline's and the blocks', gives half of alpha to each.
            shares = of_how_many() * verdicts * (1 if setup.reference is None else 2)
            self.judge = Judge(setup.gate, setup.request.baselines, self._accept_command(), shares)
            self.comparisons = Comparisons(setup.gate)
            self._rooflines = Rooflines(setup.engine, self._starter)
            self._verify_passes = VerifyPasses()
            measured = tuple(w for w in setup.workloads.values() if w.name in workloads)
            self._measurer = Measurer(
                setup, self.results, self._starter, beside=lambda: self.campaign.processes()
            )
            self.campaign = Campaign(
                [self._planned(name, measured) for name in self._with_references(profiles)],
                self._starter,
                self._measurer,
                side_by_side=setup.engine.kind == "emulated" and setup.request.start_together == 1,
                together=setup.request.start_together,
            )
            self._measured = measured
            self._settling = None
            if setup.request.budget_minutes is not None:
                alpha = alpha_per_verdict(setup.gate.statistics.alpha, max(1, shares))
                room = self.campaign.make_room
                self._settling = Settling(setup, self.results.folder, alpha=alpha, make_room=room)
            # Nothing failed: what was opened stays open until the run ends.
            self._claim = stack.pop_all()

    def _end(self) -> None:
        self._write(partial(self.results.close, self._status))

    def _accept_command(self) -> str:
        """What records this run; options that have their default value are left out."""
        asked = self.setup.request
        root = asked.folder.parent
        words = ["tokgate accept", self.results.name]
        if asked.results.resolve() != root / "results":
            words.append(f"--results {asked.results}")
        if asked.baselines.resolve() != root / "baselines":
            words.append(f"--baselines {asked.baselines}")
        return " ".join([*words, '--reason "..."'])

    def _facts(
        self,
        profiles: Collection[str],
        workloads: Collection[str],
        warnings: list[str],
        not_run: Sequence[str],
    ) -> dict[str, object]:
        setup = self.setup
        return {
            "tokgate": __version__,
            "engine": setup.engine.name,
            "engine_kind": setup.engine.kind,
            "sglang": setup.engine.version,
            "host_class": setup.host_class,
            "profiles": sorted(profiles),
            "workloads": sorted(workloads),
            "gated_metrics": list(setup.gate.metrics),
            "host_warnings": warnings,
            "not_run": sorted(not_run),
        }

    def _cases(self) -> dict[str, Case]:
        sizes = self.setup.gate.parity.get(self.setup.engine.kind, ParitySizes())
        profile = next(iter(self.setup.profiles.values()))
        return parity.cases(sizes, self._starter.served(profile).vocabulary or parity.SMALL_VOCABULARY)

    def _planned(self, name: str, workloads: tuple[Workload, ...]) -> Planned:
        profile = self.setup.profiles[name]
        is_reference = any(other.reference == name for other in self.setup.profiles.values())
        cases = self.cases if is_reference or profile.speculation else {}
        asked = self.setup.request
        return Planned(profile, workloads, cases, is_reference, asked.startup_repeats, asked.trace_steps > 0)

    def against_baseline(self, visit: Visit, workload: Workload, metric: str) -> Verdict:
        """One gated metric against its stored baseline; what that, or its lack, leaves open: by blocks."""
        measured = visit.measured(workload)
        verdict = self.judge.against_baseline(measured, metric, concurrency=workload.concurrency)
        if verdict.kind not in LEFT_OPEN or self._settling is None or self.setup.reference is None:
            return verdict
        asked = Asked(workload.name, metric, measured.samples[0].identity)
        open_ = open_questions(visit, self._measured, self.judge)
        return self._settling.build(verdict, asked, open_, self._measured) if asked in open_ else verdict

    def accept_length(self, visit: Visit, workload: Workload) -> Verdict:
        """Accept length: exactly, where the model's is known beforehand; else against the stored baseline."""
        measured = visit.measured(workload)
        asked = visit.profile.speculation
        if asked is None or asked.steps is None or asked.topk != 1:
            return self.judge.stored_accept_length(measured)
        served = self._starter.served(visit.profile)
        ids = prompts.build(workload, served.vocabulary).ids or ()
        known = modelstore.known_verify_counts(served.folder, ids, workload.output_tokens, asked.steps)
        if known is None:
            return self.judge.stored_accept_length(measured)
        return self.judge.accept_length(measured, known)

    def replay(self, visit: Visit, workload: Workload) -> Verdict:
        """Whether the CUDA graphs of a profile were captured and used."""
        measured = visit.measured(workload)
        return self.comparisons.replay(workload, visit.profile, measured, visit.facts())

    def graphs(self, visit: Visit, workload: Workload) -> Verdict:
        """A profile against the same without CUDA graphs.

        Raises:
            UsageFault: no profile of this run is that.
        """
        measured = visit.measured(workload)
        partner = self.setup.partner(visit.profile.name, GRAPHS)
        if partner is None:
            raise UsageFault(f"no profile of this run is '{visit.profile.name}' without CUDA graphs")
        verdict = self.comparisons.graphs(measured, self.campaign.visit(partner).measured(workload))
        return self._against_profile(verdict, measured, partner, workload, "gain")

    def attention_mode(self, visit: Visit, workload: Workload) -> Verdict:
        """A profile with attention mode decode against the same with prefill, where one is in this run."""
        measured = visit.measured(workload)
        partner = self.setup.partner(visit.profile.name, ATTENTION_MODE)
        other = None if partner is None else self.campaign.visit(partner).measured(workload)
        verdict = self.comparisons.attention_mode(measured, other, visit.facts())
        return (
            verdict
            if partner is None
            else self._against_profile(verdict, measured, partner, workload, "no loss")
        )

    def launches(self, visit: Visit, workload: Workload) -> Verdict:
        """Whether every part of a step is launched as its graph, from a trace of the profiler."""
        measured, traced = visit.measured(workload), visit.traced(workload)
        return judge_launches(visit.profile, measured, traced, self._rooflines.lines(visit, workload))

    def net_gain(self, visit: Visit, workload: Workload) -> Verdict:
        """A speculative profile against its reference: is speculation a gain, and what stands in its way; what
        one launch a side leaves open, by blocks, within the budget."""
        measured = visit.measured(workload)
        reference = self.setup.profiles[self.reference(visit.profile)]
        traced = visit.traced(workload) if self.setup.request.trace_steps else None
        cycles = None if traced is None else traced.cycles
        passes = self._verify_passes_like(visit, measured) if traced else ()
        against = self.campaign.visit(reference.name).measured(workload)
        verdict = judge_net_gain(workload, measured, against, cycles, passes)
        return self._against_profile(verdict, measured, reference.name, workload, "gain")

    def _against_profile(
        self, verdict: Verdict, measured: Measured, other: str, workload: Workload, claim: Claim
    ) -> Verdict:
        """A verdict on the speed of two profiles; what one launch a side left open, by blocks, within the budget."""
        open_ = verdict.kind is Kind.INCONCLUSIVE and verdict.evidence.get("speed_decides", True)
        if not open_ or self._settling is None:
            return verdict
        asked = Asked(workload.name, SPEED, measured.samples[0].identity)
        return self._settling.profile(verdict, asked, self.setup.profiles[other], (workload,), claim)

    def _verify_passes_like(self, visit: Visit, measured: Measured) -> Sequence[VerifyPass]:
        """Verify passes of the same target: of this profile's other workloads, and of profiles traced before."""
        for workload in self._measured:
            with suppress(TokgateError):
                found = visit.measured(workload), visit.traced(workload).cycles
                self._verify_passes.add(*found, workload.concurrency)
        return self._verify_passes.like(measured)

    def parity(self, name: str, visit: Visit) -> Verdict:
        """Greedy parity of a profile with its reference, on one case."""
        case = self.cases[name]
        reference = self.reference(visit.profile)
        wanted = self.campaign.visit(reference).answers(name)
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
            self.results.folder / "parity",
        )

    def _with_references(self, profiles: Iterable[str]) -> list[str]:
        wanted = set(profiles)
        wanted |= {ref for name in profiles if (ref := self.setup.profiles[name].reference)}
        return [name for name in self.setup.profiles if name in wanted]

    def reference(self, profile: Profile) -> str:
        """Name of the profile that a profile is held against.

        Raises:
            UsageFault: it has none.
        """
        if profile.reference is None:
            raise UsageFault(f"profile '{profile.name}' has no reference in profiles.yaml")
        return profile.reference

    def interrupt(self) -> None:
        """Say that the run was cut short, so that nobody takes it for a whole one."""
        self._interrupted = True

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict and store it; where it cannot be stored, that is in :attr:`unwritten`."""
        self.verdicts.append(verdict)
        self._write(partial(self.results.add_verdict, verdict))

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except ResultsUnwritable as fault:
            self.unwritten.append(fault.headline)

    def verdict_of(self, error: TokgateError, subject: str) -> Verdict:
        """The verdict that a fault stands for; one verdict a fault, however many tests it stops."""
        known = next((verdict for fault, verdict in self._faults if fault is error), None)
        if known is None:
            known = verdict_of(error, subject)
            self._faults.append((error, known))
            self.add(known)
        return known

    def _judge_end(self, teardown: Teardown) -> None:
        """A server that would not end is a hang; what it left behind was killed, and is said."""
        if teardown.hang is not None:
            self.verdict_of(teardown.hang, f"teardown[{teardown.hang.profile}]")
        if teardown.killed and teardown.hang is None:
            self.remarks.append(
                f"an engine left processes behind, which were killed: {', '.join(teardown.killed)}"
            )
        if teardown.holders:
            self.remarks.append(f"not given back after an engine's end: {', '.join(teardown.holders)}")

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for teardown in self.campaign.close():
                self._judge_end(teardown)
            self.remarks += [
                *self._measurer.blind.remarks(),
                *(() if self._settling is None else self._settling.remarks),
                *upkeep.remarks(self.setup),
                *self._starter.forced,
            ]
            text = report(self.setup.header(), self.verdicts)
            self._write(partial(write_text, self.results.folder / "report.md", text))
        finally:
            self._status = "interrupted" if kind or self._interrupted else "complete"
            self._measurer.close()
            self._claim.close()
