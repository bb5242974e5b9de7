"""The verdict on a speculative profile against its reference: a gain or a loss, and what its speed is made of."""

from __future__ import annotations

from collections.abc import Sequence

from tokgate.analysis.cycles import Cycles
from tokgate.analysis.interval import ratio_interval
from tokgate.config.workloads import Workload
from tokgate.gate.case import JudgedCase
from tokgate.gate.comparable import obstacles, remarks
from tokgate.gate.cycle.break_even import break_even_figures, break_even_lines, state_of
from tokgate.gate.cycle.verify_passes import VerifyPass
from tokgate.gate.cycle.whole import whole_cycle, whole_cycle_lines
from tokgate.gate.judge import SPEED
from tokgate.gate.margin import UNGATED, Margin
from tokgate.gate.runs import Measured
from tokgate.gate.words import count, figure, figures
from tokgate.verdict import Kind, Verdict


def judge_net_gain(
    workload: Workload,
    measured: Measured,
    reference: Measured,
    cycles: Cycles | None = None,
    passes: Sequence[VerifyPass] = (),
    margin: Margin = UNGATED,
) -> Verdict:
    """A speculative profile against its reference without speculation, on the servers measured.

    Args:
        cycles: of a trace of the speculative server, where one was recorded.
        passes: verify passes of the same target in this run's traces.
        margin: the loss that must not look green where the noise leaves it open.
    """
    one, other = measured.samples[0].identity, reference.samples[0].identity
    runs, against = measured.series(SPEED), reference.series(SPEED)
    case = JudgedCase(measured, SPEED, "tok/s", runs)
    stops = obstacles(one.resolved, other.resolved)
    if stops:
        return case.verdict(
            Kind.INCOMPARABLE,
            f"'{one.profile}' and '{other.profile}' resolved differently: {stops[0]}",
            (*stops[1:], "set it on both profiles in profiles.yaml"),
        )
    ratio = ratio_interval(runs, against)
    launches = len({sample.identity.launch for sample in measured.samples})
    body = [
        f"compared with {other.workload}[{other.profile}], {count(len(against), 'run')} on this host "
        f"in this run: {figures(against)}; launch effect not covered",
        f"runs: {figures(runs)}",
    ]
    figures_of_cycle: dict[str, object] = {}
    # A verify pass advances every stream of the batch, so break-even is reckoned per stream.
    state = state_of(measured, ratio.denominator_mean / workload.concurrency)
    if state is not None:
        body += break_even_lines(state, measured, cycles, passes)
        figures_of_cycle = break_even_figures(state, cycles)
    else:
        body.append("accept length: not reported by the server, so no break-even can be given")
    body += whole_cycle_lines(measured, workload.concurrency)
    body += [f"also differs: {remark}" for remark in remarks(one.resolved, other.resolved)]
    kind = Kind.NET_LOSS if ratio.below_one else Kind.PASS if ratio.above_one else Kind.INCONCLUSIVE
    return case.verdict(
        kind,
        f"{figure(ratio.numerator_mean)} vs {figure(ratio.denominator_mean)} tok/s without speculation, "
        f"{ratio.value:.2f}x (95 % CI {ratio.low:.2f}..{ratio.high:.2f}, {count(len(runs), 'run')}, "
        f"{count(launches, 'launch', 'launches')}){margin.remark(kind, ratio.value)}",
        tuple(body),
        figures={
            "reference": ratio.denominator_mean,
            "ratio": ratio.value,
            "change_percent": 100 * (ratio.value - 1),
            "beyond_limit": margin.exceeded(ratio.value),
            "whole_cycle": whole_cycle(measured, workload.concurrency),
            **figures_of_cycle,
        },
    )
