"""The verdict on a trace: is every part of a step launched as the graph that was captured for it?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tokgate.analysis.cycles import Cycles
from tokgate.config.profiles import Profile
from tokgate.gate.case import JudgedCase
from tokgate.gate.cycle.traces import Traced
from tokgate.gate.runs import Measured
from tokgate.gate.words import count
from tokgate.report.explain_trace import cycle_lines, cycles_json, effective_line, launch_phrase
from tokgate.sglang.graphs import ExpectedGraphs, expected_graphs
from tokgate.sglang.trace_spans import DECODE, DRAFT, DRAFT_EXTEND, VERIFY
from tokgate.verdict import Kind, Verdict

LAUNCHES = "graph launches"
"""What the verdict is listed under."""

_PART_OF = {
    "target-decode": DECODE,
    "target-verify": VERIFY,
    "draft-decode": DRAFT,
    "draft-extend": DRAFT_EXTEND,
}


def expected_of(measured: Measured, profile: Profile) -> ExpectedGraphs:
    """The graphs that the server measured should capture and launch, from what it resolved."""
    identity = measured.samples[0].identity
    arguments = identity.resolved
    return expected_graphs(
        identity.sglang_version,
        decode_graphs=profile.cuda_graphs,
        speculative=bool(arguments.get("speculative_algorithm")),
        steps=arguments.get("speculative_num_steps"),
        draft_backend=arguments.get("speculative_draft_attention_backend")
        or arguments.get("attention_backend"),
    )


def effective_ms(measured: Measured) -> float | None:
    """Mean length of a cycle, or of a step without speculation, as measured without a profiler."""
    values = measured.series("cycle_ms") or measured.series("step_ms_p50")
    return fmean(values) if values else None


def judge_launches(
    profile: Profile, measured: Measured, traced: Traced, roofline: Sequence[str] = ()
) -> Verdict:
    """``cudaGraphLaunch`` in every step of a trace, held against the graphs of this version and profile.

    Args:
        roofline: lines on the floor, for the body.
    """
    case = JudgedCase(measured, LAUNCHES, "", [])
    files = [f"trace {path}" for path in traced.files]
    found = traced.cycles
    if measured.samples[0].identity.engine == "cpu":
        body = [] if found is None else cycle_lines(found)
        return case.verdict(
            Kind.NOT_APPLICABLE, "graph launches: the CPU engine has no CUDA graphs", [*body, *files]
        )
    if found is None or not found.on_device:
        why = traced.why or "the trace shows no GPU"
        return case.verdict(Kind.INCONCLUSIVE, f"graph launches: {why}", files)
    wanted = expected_of(measured, profile)
    body = [*(f"by design: {line}" for line in wanted.why if profile.cuda_graphs), *cycle_lines(found)]
    whole_ms = effective_ms(measured)
    if whole_ms is not None:
        body.append(effective_line(found, whole_ms))
    body += [*roofline, *(f"trace: {note}" for note in found.notes), *files]
    kind, said = _held_against(found, wanted)
    return case.verdict(
        kind,
        f"{launch_phrase(found)}: {said}",
        body,
        figures={"cycles": cycles_json(found), "effective_cycle_ms": whole_ms},
    )


def _held_against(found: Cycles, wanted: ExpectedGraphs) -> tuple[Kind, str]:
    expected = wanted.launches_per_step
    steps = count(found.count, "traced step")
    fewer = sum(number < expected for number in found.launches)
    if not expected:
        if any(found.launches):
            return Kind.MISCONFIGURED, "graphs are off in the profile"
        return Kind.PASS, f"off as asked, in {steps}"
    if not fewer:
        return Kind.PASS, f"as expected, in each of {steps}"
    parts = [_PART_OF[kind] for kind in wanted.captures]
    absent = [part for part in parts if found.launched_parts.get(part, 0) < found.count]
    return (
        Kind.NOT_REPLAYED,
        f"{expected} are expected; not launched as a graph: {', '.join(absent) or 'not told apart'}, "
        f"in {fewer} of {steps}",
    )
