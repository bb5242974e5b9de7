"""A profiler trace in words: where a step's time goes, who waits for whom, what was launched as a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tokgate.analysis.cycles import Cycles
from tokgate.analysis.roofline import Roofline
from tokgate.analysis.step_parts import OTHER
from tokgate.trace.timeline import Timeline

COMMUNICATION = "communication"


def trace_text(name: str, timeline: Timeline, found: Cycles | str, roofline: Sequence[str] = ()) -> str:
    """A trace for people, line 1 the result.

    Args:
        name: of the file.
        found: its cycles, or why there are none.
        roofline: lines on the floor, if any.
    """
    graphs = int(timeline.call_is_graph.sum())
    if timeline.truncated:
        name = f"{name}: the file is cut off after {timeline.events} events"
    if isinstance(found, str):
        lines = [f"{name}: {found}"]
        if timeline.truncated and (gpu := device_name(timeline)):
            lines.append(f"  GPU        {gpu}, as the file's head says")
        lines.append(f"  graphs     {graphs} cudaGraphLaunch in {timeline.events} events")
        return "\n".join(lines)
    lines = [f"{name}: {headline(found)}", *(f"  {line}" for line in cycle_lines(found)), *roofline]
    counted = f"{found.count} cycles" + (
        f", {found.left_out} left out (prefill or idle)" if found.left_out else ""
    )
    lines.append(f"  told by    {found.told_by}; {counted}; {timeline.events} events")
    lines += [f"  note       {note}" for note in found.notes]
    return "\n".join(lines)


def device_name(timeline: Timeline) -> str | None:
    """The GPU as the trace's head names it; ``None`` when it names none."""
    gpus = timeline.header.get("deviceProperties")
    names = [item.get("name") for item in gpus if isinstance(item, dict)] if isinstance(gpus, list) else []
    return str(names[0]) if names and names[0] else None


def headline(found: Cycles) -> str:
    """``verify cycle of 13.43 ms under the profiler, the GPU busy for 1.89 ms of it (14 %): CPU-bound``."""
    what = f"{found.anchor} cycle" if found.speculative else f"{found.anchor} step".removeprefix("step ")
    if not found.on_device:
        return f"{what} of {_ms(found.period_ms)} on the CPU, under the profiler"
    share = 100 * found.busy_ms / found.period_ms
    return (
        f"{what} of {_ms(found.period_ms)} under the profiler, the GPU busy for {_ms(found.busy_ms)} "
        f"of it ({share:.0f} %): {found.bound}-bound there"
    )


def cycle_lines(found: Cycles) -> list[str]:
    """Parts, idle times, graphs, exchange between GPUs."""
    lines = [f"{'GPU' if found.on_device else 'CPU':<10} {parts_phrase(found)}"]
    if not found.on_device:
        return lines
    lines += [
        f"idle       {_ms(found.idle_ms)}: {_ms(found.waiting_ms)} waiting for the CPU to launch, "
        f"{_ms(found.within_ms)} within graphs, {_ms(found.queued_ms)} between operations already launched",
        f"graphs     {launch_phrase(found)}",
    ]
    if found.communication_ms:
        share = 100 * found.communication_ms / found.busy_ms
        lines.append(
            f"exchange   {_ms(found.communication_ms)} between GPUs, {share:.0f} % of the busy time, "
            "waiting for other ranks included"
        )
    return lines


def parts_phrase(found: Cycles) -> str:
    """``verify 1.40 ms, draft 0.28 ms, draft extend 0.18 ms, other kernels 0.02 ms``."""
    return ", ".join(f"{part} {_ms(value)}" for part, value in found.parts_ms.items())


def launch_phrase(found: Cycles) -> str:
    """``3 cudaGraphLaunch a cycle (verify, draft, draft extend), 64 kernels a cycle outside of graphs``."""
    step = "cycle" if found.speculative else "step"
    usual = found.launches_per_step
    odd = sum(number != usual for number in found.launches)
    named = f" ({', '.join(found.launched_parts)})" if found.launched_parts else ""
    but = f" in {len(found.launches) - odd} of {len(found.launches)}" if odd else ""
    outside = round(found.kernels_outside)
    kernels = f"{outside} kernel{'' if outside == 1 else 's'} a {step} outside of graphs"
    return f"{usual} cudaGraphLaunch a {step}{named}{but}, {kernels}"


def effective_line(found: Cycles, effective_ms: float) -> str:
    """What of a measured cycle the trace's kernels explain, and what is left.

    Kernels take the same time under the profiler; the CPU's own work does not, so gaps are told by the
    difference, not by the trace.

    Args:
        effective_ms: of a cycle as measured without the profiler: accept length / rate.
    """
    shown = [(part, ms) for part, ms in found.parts_ms.items() if ms >= 0.005 * effective_ms]
    parts = ", ".join(f"{_ms(ms)} {part}" for part, ms in shown)
    rest = effective_ms - found.busy_ms
    share = 100 * rest / effective_ms
    if rest < 0:
        return (
            f"of the effective cycle {_ms(effective_ms)}: {parts}: {_ms(-rest)} more than there is, "
            "so the trace was of other steps"
        )
    idle = found.waiting_ms + found.queued_ms + found.within_ms
    waits = idle > 0 and found.waiting_ms > idle / 2
    named = "gaps: the GPU waits for the CPU to launch" if waits else "gaps between kernels"
    return f"of the effective cycle {_ms(effective_ms)}: {parts}, {_ms(rest)} ({share:.0f} %) in no kernel ({named})"


def roofline_line(found: Roofline, part: str) -> str:
    """``verify 1.40 ms is 2.6 times the floor of 0.53 ms (...): 38 % of the memory's bandwidth``."""
    kv = f"{found.kv_bytes / 1e9:.2f} GB of keys and values"
    return (
        f"{part} {_ms(found.step_ms)} is {found.above:.1f} times the floor of {_ms(found.floor_ms)} "
        f"({found.weights_bytes / 1e9:.2f} GB of weights and {kv} a step at "
        f"{found.bandwidth_bytes_s / 1e9:.0f} GB/s): {100 * found.fraction:.0f} % of the memory's bandwidth"
    )


def cycles_json(found: Cycles) -> dict[str, object]:
    """The same as figures; times in milliseconds a cycle."""
    return {
        **{name: _plain(value) for name, value in asdict(found).items()},
        "idle_ms": found.idle_ms,
        "bound": found.bound,
        "launches_per_step": found.launches_per_step,
        "speculative": found.speculative,
    }


def target_ms(found: Cycles) -> float:
    """Device time of the target's pass, or of all kernels of a step where no part is told apart."""
    return found.parts_ms.get(found.anchor, found.busy_ms - found.parts_ms.get(OTHER, 0.0))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _ms(value: float) -> str:
    return f"{value:.1f} ms" if abs(value) >= 20 else f"{value:.2f} ms"
