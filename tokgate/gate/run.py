"""Run: one run of the gate from its results folder to its report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType

from tokgate import __version__
from tokgate.analysis.multiplicity import alpha_per_verdict
from tokgate.analysis.parity_case import Case
from tokgate.config.gate import ParitySizes
from tokgate.config.workloads import Workload
from tokgate.environments import installed
from tokgate.errors import ResultsUnwritable, TokgateError
from tokgate.gate import parity, upkeep
from tokgate.gate.blocks.settling import Settling
from tokgate.gate.campaign import Campaign
from tokgate.gate.claim import claim
from tokgate.gate.faults import verdict_of
from tokgate.gate.interruption import Interruption
from tokgate.gate.judge import Judge
from tokgate.gate.measurement import Measurer
from tokgate.gate.questions import Questions
from tokgate.gate.results import Results, write_text
from tokgate.gate.setup import Setup
from tokgate.gate.share import of_how_many
from tokgate.gate.start import Starter
from tokgate.gate.visit import Planned
from tokgate.report.markdown import report
from tokgate.server.teardown import Teardown
from tokgate.verdict import Verdict


class Run:
    """A run: the host's GPUs, a results folder, a campaign of servers, judge, verdicts. A context manager.

    Attributes:
        ask: the questions that tests ask of it.
        verdicts: all that were reached, in order, stored or not.
        unwritten: what could not be written, and why; the disk is full, say.
        remarks: what else a reader should know, one line each.
        interruption: what cut the run short, if anything did.

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
        self.interruption: Interruption | None = None
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
            self._settling = None
            if setup.request.budget_minutes is not None:
                alpha = alpha_per_verdict(setup.gate.statistics.alpha, max(1, shares))
                room = self.campaign.make_room
                self._settling = Settling(setup, self.results.folder, alpha=alpha, make_room=room)
            self.ask = Questions(
                setup,
                self.campaign,
                self._starter,
                self.judge,
                self._settling,
                measured=measured,
                cases=self.cases,
                folder=self.results.folder,
            )
            # Nothing failed: what was opened stays open until the run ends.
            self._claim = stack.pop_all()

    def _end(self) -> None:
        cut = {} if self.interruption is None else {"interrupted": self.interruption.facts()}
        self._write(partial(self.results.close, self._status, verdicts=len(self.verdicts), **cut))

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
            "references": sorted(set(self._with_references(profiles)) - set(profiles)),
            "workloads": sorted(workloads),
            "gated_metrics": list(setup.gate.metrics),
            "host_warnings": warnings,
            "not_run": sorted(not_run),
            "engine_faults": list(setup.request.faults),
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

    def _with_references(self, profiles: Iterable[str]) -> list[str]:
        wanted = set(profiles)
        wanted |= {ref for name in profiles if (ref := self.setup.profiles[name].reference)}
        return [name for name in self.setup.profiles if name in wanted]

    def interrupt(self, by: Interruption) -> None:
        """Say that the run was cut short, so that nobody takes it for a whole one."""
        self.interruption = by

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
            cut = self.interruption.line if self.interruption else f"ended by {kind.__name__}" if kind else ""
            text = report(self.setup.header(), self.verdicts, interrupted=cut)
            self._write(partial(write_text, self.results.folder / "report.md", text))
        finally:
            self._status = "interrupted" if kind or self.interruption else "complete"
            self._measurer.close()
            self._claim.close()
