"""Judge: from measured runs and what they are held against to a Verdict with its message.

The statistics are in :mod:`tokgate.analysis`; here their results get words. Line 1 says metric, got
against expected, change with interval, limit; the body says compared with what, the split, the likely cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tokgate import baselines
from tokgate.analysis.blocks import arm
from tokgate.analysis.percent import detectable_text
from tokgate.analysis.speculation import Attribution
from tokgate.analysis.stored import judge_stored
from tokgate.baselines import Baseline
from tokgate.config.gate import GateFile, Limit
from tokgate.errors import UsageFault
from tokgate.gate.case import JudgedCase
from tokgate.gate.cycle.attribution import RATE, attribution, attribution_lines
from tokgate.gate.cycle.whole import whole_cycle_lines
from tokgate.gate.runs import Measured
from tokgate.gate.start import STARTUP_TOGETHER
from tokgate.gate.starts import Starts
from tokgate.gate.starts import verdict as starts_verdict
from tokgate.gate.words import count, figure, figures
from tokgate.verdict import Kind, Verdict

SPEED = "decode_tok_s"
"""What speculation changes: tokens a second after the first one."""

ALL_REJECTED = 1.02
"""An accept length below this is the bonus token alone."""

SLOWED = "hold it against a reference build beside it (--budget-minutes, --reference-engine)"

REJECTED = "every draft is rejected: the draft is not used, or gets the wrong hidden states"


class Judge:
    """Turns figures into verdicts.

    Args:
        gate: limits and error rates.
        stored: folder of baselines.
        accept: the command that records this run as baselines, for messages.
        verdicts: how many verdicts the run will reach; alpha is shared among them.
    """

    def __init__(self, gate: GateFile, stored: Path, accept: str, verdicts: int) -> None:
        self._gate = gate
        self._stored = stored
        self._accept = accept
        self._alpha = gate.statistics.alpha / max(1, verdicts)

    def startup(self, starts: Starts) -> Verdict:
        """A server that became ready, as often as it was launched.

        Raises:
            EngineFault: a launch hung or died.
        """
        return starts_verdict(starts)

    def startup_time(self, starts: Starts, metric: str) -> Verdict:
        """Seconds of the start, or of a phase of it, against the stored baseline."""
        measured = starts.measured
        identity = measured.samples[0].identity
        stored = baselines.read(self._stored, identity.host_class, identity.profile, identity.workload)
        limit = self._limit(metric).limit_percent / 100
        recorded = [] if stored is None else [value for runs in stored.series(metric) for value in runs]
        stop = starts.unjudged(metric, limit, recorded)
        if stop is not None:
            kind, headline = stop
            return JudgedCase(measured, metric, "s", measured.series(metric)).verdict(kind, headline)
        return self.against_baseline(measured, metric)

    def memory(self, starts: Starts, metric: str) -> Verdict:
        """Memory that a server took, against the stored baseline."""
        measured = starts.measured
        identity = measured.samples[0].identity
        stored = baselines.read(self._stored, identity.host_class, identity.profile, identity.workload)
        recorded = stored is not None and bool(stored.series(metric))
        runs, unit = measured.series(metric), self._limit(metric).unit
        case = JudgedCase(measured, metric, unit, runs)
        if not runs and not recorded:
            # Of servers that start together it is told of the whole GPU.
            whose = "whose it is" if identity.workload == STARTUP_TOGETHER else "it"
            return case.verdict(
                Kind.NOT_APPLICABLE, f"{metric}: neither this host nor the engine tells {whose}"
            )
        if stored is not None and not recorded:
            return case.verdict(
                Kind.INCONCLUSIVE,
                f"{metric}: {figure(fmean(runs))} {unit}, the stored baseline was recorded without it",
                next_command=self._accept,
            )
        return self.against_baseline(measured, metric)

    def gates(self, metric: str) -> bool:
        """Whether gate.yaml has a limit for a metric."""
        return metric in self._gate.metrics

    def against_baseline(self, measured: Measured, metric: str, *, concurrency: int = 1) -> Verdict:
        """One gated metric of a case against its stored baseline.

        Args:
            concurrency: streams of the workload, for what a change of the rate is made of.
        """
        identity = measured.samples[0].identity
        limit = self._limit(metric)
        runs = measured.series(metric)
        case = JudgedCase(measured, metric, limit.unit, runs)
        if not runs:
            return case.verdict(
                Kind.INCONCLUSIVE,
                f"{metric}: absent from every run; the server did not report what it is made of",
            )
        now = f"{metric}: {figure(fmean(runs))} {limit.unit}"
        made_of = None
        spent = whole_cycle_lines(measured, concurrency) if metric == RATE else []
        baseline = baselines.read(self._stored, identity.host_class, identity.profile, identity.workload)
        if baseline is None or not baseline.series(metric):
            where = baselines.path_of(self._stored, identity.host_class, identity.profile, identity.workload)
            missing = "no stored baseline" if baseline is None else "the stored baseline lacks this metric"
            body = (f"looked for {where}", f"runs: {figures(runs)}", *spent)
            return case.verdict(Kind.MISSING, f"{now}, {missing}", body, next_command=self._accept)
        reasons = baselines.differences(baseline, identity)
        if reasons:
            return case.verdict(
                Kind.INCOMPARABLE,
                f"{now}, the stored baseline measured something else: {reasons[0]}",
                (*reasons[1:], f"baseline {baseline.path}"),
                next_command=self._accept,
            )
        if metric == RATE:
            made_of = attribution(
                measured, baseline, concurrency=concurrency, limit=limit.limit_percent / 100
            )
        return self._against(case, baseline, limit, made_of, spent)

    def _limit(self, metric: str) -> Limit:
        if metric not in self._gate.metrics:
            raise UsageFault(f"gate.yaml has no metric '{metric}', which this test gates")
        return self._gate.metrics[metric]

    def _against(
        self,
        case: JudgedCase,
        baseline: Baseline,
        limit: Limit,
        made_of: Attribution | None,
        spent: Sequence[str],
    ) -> Verdict:
        metric, runs = case.metric, case.runs
        sessions = baseline.series(metric)
        # Sessions of one day share that day's drift; on an emulated engine days mean nothing.
        days = [session.at[:10] for session in baseline.sessions if session.samples.get(metric)]
        decision = judge_stored(
            sessions,
            runs,
            better=limit.better,
            limit=limit.limit_percent / 100,
            alpha=self._alpha,
            beta=self._gate.statistics.beta,
            days=None if baseline.identity["engine"] == "emulated" else days,
        )
        # What was compared: the mean without the slowest runs, and what the sessions make of it.
        now = arm(list(runs), limit.better).value
        expected = now / decision.ratio
        loss = -decision.change if limit.better == "higher" else decision.change
        beyond = 100 * loss > limit.limit_percent
        kind = Kind(decision.kind)
        notes = decision.notes
        if kind is Kind.REGRESSION and case.slowed > 0.5:
            kind = Kind.INCONCLUSIVE
            notes = (
                *notes,
                f"{100 * case.slowed:.0f} % of the runs had a slow CPU, which recorded sessions had not: {SLOWED}",
            )
        sign = "-" if limit.better == "higher" else "+"
        least = decision.smallest_detectable
        return case.verdict(
            kind,
            f"{metric}: {figure(now)} vs {figure(expected)} {limit.unit}, "
            f"{decision.change_text()}, limit {sign}{limit.limit_percent:g} %",
            (
                f"compared with {count(len(sessions), 'session')} in {baseline.path} ({baseline.reason})",
                f"{count(len(runs), 'run')} on {case.launches}: {figures(runs)}",
                f"smallest change detectable now: {detectable_text(least)}",
                *notes,
                *(attribution_lines(made_of) if made_of is not None else ()),
                *spent,
            ),
            next_command=self._accept if kind is Kind.IMPROVED else None,
            figures={
                "now": now,
                "beyond_limit": beyond,
                "reference": expected,
                "change_percent": 100 * decision.change,
                "smallest_detectable_percent": None if least is None else 100 * least,
                **({} if made_of is None else {"laid_to": made_of.cause, "masked": made_of.masked}),
            },
        )

    def stored_accept_length(self, measured: Measured) -> Verdict:
        """Accept length of a model whose is not known beforehand, against the stored baseline.

        One of 1.00 is no figure to be compared: the draft is not used.
        """
        runs = measured.series("accept_length")
        if not runs or max(runs) >= ALL_REJECTED:
            return self.against_baseline(measured, "accept_length")
        return JudgedCase(measured, "accept_length", "tokens", runs).verdict(
            Kind.MISCONFIGURED,
            f"accept_length: {max(runs):.2f} tokens: the draft is not used",
            (REJECTED, "no baseline was looked at: this is no change of speed"),
        )

    def accept_length(self, measured: Measured, predicted: Sequence[int]) -> Verdict:
        """Accept length of a synthetic pair: verify passes request by request, compared exactly.

        Args:
            predicted: verify passes by prompt.
        """
        runs = measured.series("accept_length")
        case = JudgedCase(measured, "accept_length", "tokens", runs)
        requests = [r for sample in measured.samples for r in sample.requests]
        told = [r for r in requests if r.verify_count is not None and r.completion_tokens]
        if not told or len(told) < len(requests):
            return case.verdict(
                Kind.INCONCLUSIVE,
                f"accept_length: {len(requests) - len(told)} of {len(requests)} requests report no verify count or "
                "no tokens",
            )
        off = [r for r in told if r.verify_count != predicted[r.index]]
        expected = fmean(((r.completion_tokens or 0) - 1) / predicted[r.index] for r in told)
        figures_known = {"reference": expected, "change_percent": 100 * (fmean(runs) / expected - 1)}
        compared = f"{count(len(told), 'request')} compared exactly"
        if not off:
            return case.verdict(
                Kind.PASS,
                f"accept_length: {figure(fmean(runs))} as predicted for this pair, {compared}",
                figures=figures_known,
            )
        now = fmean(runs)
        first = off[0]
        body = [
            f"request {first.index}: {first.verify_count} verify passes, predicted {predicted[first.index]}",
            "a synthetic pair has no noise here: a difference is a change of the engine's behaviour",
        ]
        kind = Kind.REGRESSION if now < expected else Kind.IMPROVED
        if now < ALL_REJECTED:
            kind = Kind.MISCONFIGURED
            body.append(REJECTED)
        return case.verdict(
            kind,
            f"accept_length: {now:.3f} vs {expected:.3f} tokens predicted, {len(off)} of {compared} differ",
            body,
            figures=figures_known,
        )
