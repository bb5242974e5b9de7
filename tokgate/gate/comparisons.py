"""Verdicts on CUDA graphs and attention mode: are graphs used, do they pay, does the mode do anything?

The reckoning is in :mod:`tokgate.analysis.replay` and :mod:`tokgate.analysis.difference`; here it gets words.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tokgate.analysis.difference import CountComparison, Difference, compare_counts, difference
from tokgate.analysis.replay import coverage, graph_use, suspects
from tokgate.config.gate import GateFile
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.gate import passes
from tokgate.gate.case import JudgedCase
from tokgate.gate.comparable import obstacles, remarks
from tokgate.gate.facts import ServerFacts
from tokgate.gate.judge import SPEED
from tokgate.gate.margin import Margin, limit_percent, speed_margin
from tokgate.gate.runs import Measured
from tokgate.gate.words import count, figure, figures
from tokgate.load.sample import Identity
from tokgate.sglang.attention import attention_mode_effect
from tokgate.sglang.graphs import expected_graphs
from tokgate.verdict import Kind, Verdict

REPLAY, GRAPHS, MODE = "graph replay", "graphs on/off", "attention mode"
"""What the verdicts are listed under."""

ACCEPT_LIMIT = "accept_length"
"""Metric of gate.yaml whose limit says how much is no difference."""


class Comparisons:
    """Turns runs of profiles that differ in one thing into verdicts.

    Args:
        gate: limits.
    """

    def __init__(self, gate: GateFile) -> None:
        self._gate = gate
        self._margin = speed_margin(gate)

    def replay(self, workload: Workload, profile: Profile, measured: Measured, facts: ServerFacts) -> Verdict:
        """Graphs captured and replayed, or with ``cuda_graphs: off`` neither."""
        identity = measured.samples[0].identity
        arguments = identity.resolved
        counted = [passes.of_run(sample.counters) for sample in measured.samples]
        case = JudgedCase(measured, REPLAY, "", [])
        if identity.engine == "cpu":
            return case.verdict(Kind.NOT_APPLICABLE, "CUDA graphs: the CPU engine has none")
        speculative = bool(arguments.get("speculative_algorithm"))
        expected = expected_graphs(
            identity.sglang_version,
            decode_graphs=profile.cuda_graphs,
            speculative=speculative,
            steps=arguments.get("speculative_num_steps"),
            draft_backend=arguments.get("speculative_draft_attention_backend")
            or arguments.get("attention_backend"),
        )
        captured = coverage(facts.captures or {}, expected, profile.tp)
        use = graph_use(
            counted,
            facts.captures,
            captured,
            wanted=profile.cuda_graphs,
            prefill_wanted=profile.prefill_cuda_graphs is True,
        )
        told = {
            "captured": {kind: list(ranks) for kind, ranks in (facts.captures or {}).items()},
            "replayed_passes": use.replayed,
            "eager_passes": use.eager,
        }
        seen = _captured(facts, captured.lines)
        body = [seen, *(f"by design: {line}" for line in expected.why if profile.cuda_graphs)]
        if arguments.get("cuda_graph_decode") == "disabled" and profile.cuda_graphs:
            return case.verdict(
                Kind.MISCONFIGURED,
                "CUDA graphs: on in the profile, and the server resolved them to disabled",
                (*body, f"see {facts.log} for its reason"),
                figures=told,
            )
        if use.state == "replayed":
            if speculative:
                body.append(
                    "replay is counted for the target's passes: SGLang has no counter for the draft's"
                )
            return case.verdict(
                Kind.PASS,
                f"CUDA graphs: {use.replayed} of {count(use.passes, 'decode pass', 'decode passes')} replayed; "
                f"captured {', '.join(captured.lines)}",
                body[1:],
                figures=told,
            )
        if use.state == "off":
            return case.verdict(
                Kind.PASS,
                f"CUDA graphs: off as asked: nothing captured, none of "
                f"{count(use.passes, 'decode pass', 'decode passes')} replayed",
                figures=told,
            )
        if use.state == "not off":
            return case.verdict(
                Kind.MISCONFIGURED, f"CUDA graphs: off in the profile, and {use.why}", body, figures=told
            )
        if use.state == "not replayed":
            why = suspects(arguments, workload.concurrency, facts.captures)
            body += [f"blamed: {line}" for line in why.blamed]
            body += [f"ruled out: {line}" for line in why.cleared]
            body += [f"not known: {line}" for line in why.unknown]
            if not why.blamed:
                body.append("nothing known explains it: the engine decides against its graphs")
            return case.verdict(
                Kind.NOT_REPLAYED,
                f"CUDA graphs: {use.eager} of {count(use.passes, 'decode pass', 'decode passes')} ran without "
                f"one{'' if facts.captures == {} else ' although captured'}",
                body,
                figures=told,
            )
        if use.replayed is None:
            body.append("sglang:cuda_graph_passes_total is the only proof of replay; captured is not used")
        elif profile.cuda_graphs:
            body.append(f"{use.replayed} of {count(use.passes, 'decode pass', 'decode passes')} replayed")
        return case.verdict(Kind.INCONCLUSIVE, f"CUDA graphs: {use.why}", body, figures=told)

    def graphs(self, on: Measured, off: Measured) -> Verdict:
        """A profile against the same without graphs: faster, and with the same accept length."""
        case, one, other = self._case(on, off, GRAPHS)
        stops = _stops(case, one, other)
        if stops is not None:
            return stops
        found = difference(on.series(SPEED), off.series(SPEED))
        ratio = found.ratio
        body = _compared(on, off)
        kind, said = Kind.INCONCLUSIVE, f"no difference detectable ({found.detectable_text()})"
        if ratio.above_one:
            kind, said = Kind.PASS, "graphs pay"
        elif ratio.below_one:
            kind, said = Kind.NET_LOSS, "graphs are a net loss"
        beyond = self._margin.remark(kind, ratio.value)
        headline = f"{_speeds(found)} {_without(other)}, {_change(found)}{beyond}: {said}"
        speed_decides = True
        if one.resolved.get("speculative_algorithm"):
            verdict, line = self._accept_length(on, off)
            # Where accept length is open no speed makes this verdict pass.
            speed_decides = verdict is Kind.PASS
            if verdict is Kind.DIVERGED or (verdict is Kind.INCONCLUSIVE and kind is Kind.PASS):
                kind, headline = verdict, f"{line}; {headline}"
            else:
                body.insert(0, line)
        told = {**_figures(found, self._margin), "speed_decides": speed_decides}
        return case.verdict(kind, headline, body, figures=told)

    def attention_mode(self, decode: Measured, prefill: Measured | None, facts: ServerFacts) -> Verdict:
        """A profile with attention mode decode against the same with prefill.

        Args:
            prefill: ``None`` when the run has no such profile.
            facts: of the server with mode decode.
        """
        one = decode.samples[0].identity
        effect = attention_mode_effect(
            one.resolved,
            architectures=facts.architectures,
            hybrid_line=facts.hybrid_line,
            version=one.sglang_version,
        )
        if effect.real is False:
            body = [f"to make it real: {effect.remedy}"] if effect.remedy else []
            case = JudgedCase(decode, MODE, "tok/s", decode.series(SPEED))
            return case.verdict(Kind.VACUOUS, f"attention mode decode: {effect.why}", body)
        if prefill is None:
            case = JudgedCase(decode, MODE, "tok/s", decode.series(SPEED))
            return case.verdict(
                Kind.INCONCLUSIVE,
                "attention mode decode: no profile of this run is the same with mode prefill",
                ["name it with --profiles beside this one"],
                figures={"speed_decides": False},
            )
        case, one, other = self._case(decode, prefill, MODE)
        stops = _stops(case, one, other)
        if stops is not None:
            return stops
        limit = self._margin.limit_percent
        found = difference(decode.series(SPEED), prefill.series(SPEED))
        kind, said = {
            "equal": (Kind.PASS, f"no difference larger than {limit:g} % ({found.detectable_text()})"),
            "faster": (Kind.PASS, "mode decode is faster"),
            "slower": (Kind.NET_LOSS, "mode decode is a net loss"),
            "open": (Kind.INCONCLUSIVE, f"no difference detectable ({found.detectable_text()})"),
        }[found.against(limit / 100)]
        body = [f"the mode acts here: {effect.why}", *_compared(decode, prefill)]
        if effect.real is None:
            body[0] = f"whether the mode acts here cannot be told: {effect.why}"
            if kind is Kind.PASS:
                kind, said = Kind.INCONCLUSIVE, f"{said}, and whether the mode acts cannot be told"
        if kind is Kind.INCONCLUSIVE:
            body.append(f"claimed is a difference within {limit:g} %; more runs narrow the interval: --runs")
        return case.verdict(
            kind,
            f"{_speeds(found)} with mode prefill, {_change(found)}"
            f"{self._margin.remark(kind, found.ratio.value)}: {said}",
            body,
            figures={**_figures(found, self._margin), "speed_decides": effect.real is not None},
        )

    def _case(
        self, measured: Measured, other: Measured, metric: str
    ) -> tuple[JudgedCase, Identity, Identity]:
        case = JudgedCase(measured, metric, "tok/s", measured.series(SPEED))
        return case, measured.samples[0].identity, other.samples[0].identity

    def _accept_length(self, on: Measured, off: Measured) -> tuple[Kind, str]:
        """Whether accept length is the same with graphs as without, in one phrase."""
        lengths = [side.series("accept_length") for side in (on, off)]
        if not all(lengths):
            return Kind.INCONCLUSIVE, "accept length: not reported by both servers"
        with_graphs, without = (fmean(side) for side in lengths)
        both = f"accept length {figure(with_graphs)} with graphs, {figure(without)} without"
        found = compare_counts([s.requests for s in on.samples], [s.requests for s in off.samples])
        if found.equal:
            return Kind.PASS, f"{both}: verify passes equal in {count(found.compared, 'request')}"
        text = f"{both}: {_unequal(found)}"
        apart = abs(with_graphs / without - 1) > limit_percent(self._gate, ACCEPT_LIMIT) / 100
        return (Kind.DIVERGED if found.differing and apart else Kind.INCONCLUSIVE), text


def _unequal(found: CountComparison) -> str:
    parts = [
        (len(found.differing), "gave the same output in another number of verify passes"),
        (len(found.other_output), "gave another output (see greedy parity)"),
        (len(found.restless), "did not repeat on one and the same server"),
        (found.unreported, "without a verify count"),
    ]
    return ", ".join(f"{count(number, 'request')} {what}" for number, what in parts if number)


def _stops(case: JudgedCase, one: Identity, other: Identity) -> Verdict | None:
    """The verdict, when two servers cannot be compared."""
    found = obstacles(one.resolved, other.resolved)
    if not found:
        return None
    return case.verdict(
        Kind.INCOMPARABLE,
        f"'{one.profile}' and '{other.profile}' resolved differently: {found[0]}",
        (*found[1:], "set it on both profiles in profiles.yaml"),
    )


def _captured(facts: ServerFacts, lines: Sequence[str]) -> str:
    if facts.captures is None:
        return f"captured: not known, {facts.log} holds no line of a start"
    return f"captured: {', '.join(lines) or 'nothing'}"


def _compared(one: Measured, other: Measured) -> list[str]:
    first, second = one.samples[0].identity, other.samples[0].identity
    against = other.series(SPEED)
    lines = [
        f"compared with {second.workload}[{second.profile}], {count(len(against), 'run')} on this host in this "
        f"run: {figures(against)}; launch effect not covered",
        f"runs: {figures(one.series(SPEED))}",
    ]
    return lines + [f"also differs: {remark}" for remark in remarks(first.resolved, second.resolved)]


def _speeds(found: Difference) -> str:
    return f"{figure(found.ratio.numerator_mean)} vs {figure(found.ratio.denominator_mean)} tok/s"


def _without(other: Identity) -> str:
    return f"without graphs ('{other.profile}')"


def _change(found: Difference) -> str:
    ratio = found.ratio
    low, high = (100 * (end - 1) for end in (ratio.low, ratio.high))
    ends = f"{low:+.1f}..{high:+.1f}" if high < float("inf") else "unbounded"
    return f"{100 * (ratio.value - 1):+.1f} % (95 % CI {ends}, {count(ratio.numerator_runs, 'run')})"


def _figures(found: Difference, margin: Margin) -> dict[str, object]:
    least = found.smallest_detectable
    return {
        "reference": found.ratio.denominator_mean,
        "ratio": found.ratio.value,
        "change_percent": 100 * (found.ratio.value - 1),
        "beyond_limit": margin.exceeded(found.ratio.value),
        "smallest_detectable_percent": None if least is None else 100 * least,
    }
