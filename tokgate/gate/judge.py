"""Judge: from measured runs and what they are held against to a Verdict with its message.

The statistics are in :mod:`tokgate.analysis`; here their results get words. Line 1 says metric, got
against expected, change with interval, limit; the body says compared with what, the split, the likely cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tokgate import baselines
from tokgate.analysis.breakeven import break_even
from tokgate.analysis.interval import ratio_interval
from tokgate.analysis.stored import judge_stored
from tokgate.config.gate import GateFile, Limit
from tokgate.config.workloads import Workload
from tokgate.gate.measurement import Measured
from tokgate.load.sample import Identity, Sample
from tokgate.verdict import Kind, Verdict

SHOWN_FILES = 3


class Judge:
    """Turns figures into verdicts.

    Args:
        gate: limits and error rates.
        stored: folder of baselines.
        run: name of the run, for the accept command.
        verdicts: how many verdicts the run will reach; alpha is shared among them.
    """

    def __init__(self, gate: GateFile, stored: Path, run: str, verdicts: int) -> None:
        self._gate = gate
        self._stored = stored
        self._run = run
        self._alpha = gate.statistics.alpha / max(1, verdicts)

    def against_baseline(self, measured: Measured, metric: str) -> Verdict:
        """One gated metric of a case against its stored baseline."""
        identity = measured.samples[0].identity
        limit = self._gate.metrics[metric]
        subject = f"{identity.workload}[{identity.profile}]"
        runs = measured.series(metric)
        files = tuple(str(path) for path in measured.files[:SHOWN_FILES])
        evidence = _evidence(identity, metric, limit, runs)
        if not runs:
            return Verdict(
                Kind.INCONCLUSIVE,
                subject,
                f"{metric}: absent from every run; the server did not report what it is made of",
                files=files,
                evidence=evidence,
            )
        now = f"{metric}: {_figure(fmean(runs))} {limit.unit}"
        accept = f'tokgate accept {self._run} --reason "..."'
        baseline = baselines.read(self._stored, identity.host_class, identity.profile, identity.workload)
        if baseline is None or not baseline.series(metric):
            where = baselines.path_of(self._stored, identity.host_class, identity.profile, identity.workload)
            missing = "no stored baseline" if baseline is None else "the stored baseline lacks this metric"
            return Verdict(
                Kind.MISSING,
                subject,
                f"{now}, {missing}",
                body=(f"looked for {where}", f"runs: {_figures(runs)}"),
                next_command=accept,
                files=files,
                evidence=evidence,
            )
        reasons = baselines.differences(baseline, identity)
        if reasons:
            return Verdict(
                Kind.INCOMPARABLE,
                subject,
                f"{now}, the stored baseline measured something else: {reasons[0]}",
                body=(*reasons[1:], f"baseline {baseline.path}"),
                next_command=accept,
                files=files,
                evidence=evidence,
            )
        sessions = baseline.series(metric)
        expected = fmean(fmean(session) for session in sessions)
        decision = judge_stored(
            sessions,
            runs,
            better=limit.better,
            limit=limit.limit_percent / 100,
            alpha=self._alpha,
            beta=self._gate.statistics.beta,
            days=[session.at[:10] for session in baseline.sessions if session.samples.get(metric)],
        )
        sign = "-" if limit.better == "higher" else "+"
        headline = (
            f"{metric}: {_figure(fmean(runs))} vs {_figure(expected)} {limit.unit}, {decision.change_text()}, "
            f"limit {sign}{limit.limit_percent:g} %"
        )
        least = decision.smallest_detectable
        body = [
            f"compared with {_count(len(sessions), 'session')} in {baseline.path} ({baseline.reason})",
            f"{_count(len(runs), 'run')} on one launch: {_figures(runs)}",
            f"smallest change detectable now: {f'{100 * least:.1f} %' if least is not None else 'unknown'}",
            *decision.notes,
        ]
        kind = Kind(decision.kind)
        return Verdict(
            kind,
            subject,
            headline,
            body=tuple(body),
            next_command=accept if kind is Kind.IMPROVED else None,
            files=files,
            evidence={
                **evidence,
                "reference": expected,
                "change_percent": 100 * (decision.ratio - 1),
                "smallest_detectable_percent": None if least is None else 100 * least,
            },
        )

    def startup(self, sample: Sample) -> Verdict:
        """A server that became ready: it generated as many tokens as were asked."""
        phases = {
            name.removesuffix("_s"): value for name, value in sample.metrics.items() if name != "startup_s"
        }
        slowest = sorted(phases, key=lambda name: -phases[name])[:4]
        total = sample.metrics["startup_s"]
        return Verdict(
            Kind.PASS,
            f"startup[{sample.identity.profile}]",
            f"ready and generating after {_figure(total)} s "
            f"({', '.join(f'{name} {_figure(phases[name])} s' for name in slowest)})",
            evidence={
                "workload": "startup",
                "profile": sample.identity.profile,
                "metric": "startup_s",
                "unit": "s",
                "now": total,
                "phases_s": phases,
            },
        )

    def net_gain(self, workload: Workload, measured: Measured, reference: Measured) -> Verdict:
        """A speculative profile against its reference without speculation, on the servers measured."""
        identity, other = measured.samples[0].identity, reference.samples[0].identity
        subject = f"{identity.workload}[{identity.profile}]"
        metric, limit = "output_tok_s", self._gate.metrics["output_tok_s"]
        runs, against = measured.series(metric), reference.series(metric)
        files = tuple(str(path) for path in (*measured.files[:1], *reference.files[:1]))
        evidence = _evidence(identity, metric, limit, runs)
        unequal = unequal_resolved(measured.samples[0], reference.samples[0])
        if unequal:
            return Verdict(
                Kind.INCOMPARABLE,
                subject,
                f"{metric}: '{identity.profile}' and '{other.profile}' resolved differently: {unequal[0]}",
                body=tuple(unequal[1:]),
                files=files,
                evidence=evidence,
            )
        ratio = ratio_interval(runs, against)
        baseline_tok_s = fmean(against)
        launches = len({s.identity.launch for s in measured.samples})
        headline = (
            f"{_figure(fmean(runs))} vs {_figure(baseline_tok_s)} {limit.unit} without speculation, "
            f"{ratio.value:.2f}x (95 % CI {ratio.low:.2f}..{ratio.high:.2f}, {_count(len(runs), 'run')}, "
            f"{_count(launches, 'launch', 'launches')})"
        )
        body = [
            f"compared with {other.workload}[{other.profile}] on the same host in the same run; "
            "launch effect not covered",
        ]
        accept_length = measured.series("accept_length")
        evidence |= {
            "reference": baseline_tok_s,
            "ratio": ratio.value,
            "change_percent": 100 * (ratio.value - 1),
        }
        if accept_length:
            # A verify pass advances every stream of the batch: break-even is per stream.
            state = break_even(
                baseline_tok_s=baseline_tok_s / workload.concurrency,
                accept_length=fmean(accept_length),
                measured_tok_s=fmean(runs) / workload.concurrency,
            )
            body += state.lines()
            evidence |= {
                "accept_length": fmean(accept_length),
                "cycle_ms": state.cycle_ms,
                "break_even_accept_length": state.break_even_accept_length,
            }
        else:
            body.append("accept length: not reported by the server, so no break-even can be given")
        kind = Kind.INCONCLUSIVE
        if ratio.high < 1:
            kind = Kind.NET_LOSS
        elif ratio.low > 1:
            kind = Kind.PASS
        return Verdict(kind, subject, headline, body=tuple(body), files=files, evidence=evidence)


def unequal_resolved(one: Sample, other: Sample) -> list[str]:
    """Server arguments outside speculation that two profiles resolved to different values."""
    a, b = one.identity.resolved, other.identity.resolved
    keys = sorted((set(a) | set(b)) - {k for k in (*a, *b) if k.startswith("speculative")})
    return [f"{key} {a.get(key)} against {b.get(key)}" for key in keys if a.get(key) != b.get(key)]


def _evidence(identity: Identity, metric: str, limit: Limit, runs: Sequence[float]) -> dict[str, object]:
    return {
        "workload": identity.workload,
        "profile": identity.profile,
        "metric": metric,
        "unit": limit.unit,
        "runs": list(runs),
        "now": fmean(runs) if runs else None,
    }


def _figure(value: float) -> str:
    """Four significant digits, never an exponent."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _figures(values: Sequence[float]) -> str:
    return ", ".join(_figure(value) for value in values)


def _count(number: int, word: str, plural: str | None = None) -> str:
    return f"{number} {word if number == 1 else plural or word + 's'}"
