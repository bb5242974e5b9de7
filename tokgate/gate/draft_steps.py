"""The model of draft steps in a verdict: what other numbers of steps would give, what a tree would have to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokgate.analysis.breakeven import BreakEven
from tokgate.analysis.cycles import Cycles
from tokgate.analysis.step_model import (
    TREES,
    CostLine,
    ModelledPoint,
    StepCosts,
    TreeNeed,
    best_steps,
    constant_acceptance,
    cost_line,
    modelled_curve,
    position_acceptance,
    tree_need,
)
from tokgate.analysis.step_parts import OTHER
from tokgate.gate.cycle.verify_passes import VerifyPass, tokens_of
from tokgate.gate.runs import Measured
from tokgate.gate.words import count
from tokgate.report.explain_breakeven import tree_lines
from tokgate.sglang.trace_spans import DRAFT, DRAFT_EXTEND, VERIFY

NOTABLE_GAPS = 0.1
"""Share of a cycle in no kernel from which the model says that it takes it to stay: fewer steps launch less."""


@dataclass(frozen=True, slots=True)
class DraftSteps:
    """The model of one profile on one workload.

    Attributes:
        steps, topk, tokens: as resolved; ``tokens`` of a stream's verify pass, ``None`` where it is not told.
        curve: by number of steps, from 1.
        positions: draft positions of which the acceptance was measured; 0 where no histogram is reported.
        line: what a verify token costs, for all streams together; ``None`` where passes of one size alone were traced.
        other_streams: whether the line also goes through passes of another number of streams.
        gaps: share of a cycle that lies in no kernel.
        needs: what trees would have to reach.
    """

    steps: int
    topk: int
    tokens: int | None
    curve: tuple[ModelledPoint, ...]
    positions: int
    line: CostLine | None
    other_streams: bool
    gaps: float
    needs: tuple[TreeNeed, ...]

    @property
    def best(self) -> ModelledPoint:
        """The fastest among the numbers of steps whose positions were all measured."""
        return best_steps(self.curve[: self.positions or self.steps])

    @property
    def beyond(self) -> ModelledPoint | None:
        """A longer one that would win, and be faster still, if positions that nobody measured were accepted like the
        last that was."""
        found = best_steps(self.curve)
        return found if found.steps > (self.positions or self.steps) and found.speedup > 1 else None


def draft_steps(
    state: BreakEven, measured: Measured, cycles: Cycles, passes: Sequence[VerifyPass] = ()
) -> DraftSteps | None:
    """Model a profile; ``None`` where its steps, or what a part of its cycle costs, are not known.

    Args:
        state: its break-even.
        cycles: of its trace.
        passes: verify passes of the same target that were traced in this run, ``cycles``' own among them.
    """
    steps = resolved_steps(measured, state.accept_length)
    parts = cycles.parts_ms
    # A part that the trace does not show would be modelled as one that costs nothing, and more of it as a gain.
    needed = {VERIFY, DRAFT_EXTEND} if steps == 1 else {VERIFY, DRAFT, DRAFT_EXTEND}
    if steps is None or not needed <= parts.keys():
        return None
    topk = measured.samples[0].identity.resolved.get("speculative_eagle_topk") or 1
    # One of the draft's tokens comes from draft extend: the draft itself makes steps - 1 passes.
    draft_ms = parts.get(DRAFT, 0.0) / max(1, steps - 1)
    costs = StepCosts(
        verify_ms=parts[VERIFY] + parts.get(OTHER, 0.0),
        draft_ms=draft_ms,
        extend_ms=parts.get(DRAFT_EXTEND, 0.0) - draft_ms,
        other_ms=max(0.0, state.cycle_ms - cycles.busy_ms),
    )
    streams = next((item.streams for item in passes if item.cycles is cycles), 1)
    line, other_streams = _line(passes, streams)
    grown = costs if line is None else replace(costs, verify_per_token_ms=line.per_token_ms * streams)
    # A line through passes of very different sizes may leave nothing for a small one: then it says nothing here.
    if line is None or grown.verify_per_token_ms * (steps + 1) >= costs.verify_ms:
        line, other_streams, grown = None, False, costs
    known = acceptance(measured)
    # The tokens of a tree are a setting of their own: a step more is no token more in its verify pass.
    curve = modelled_curve(
        grown if topk == 1 else costs,
        known or [constant_acceptance(state.accept_length, steps)],
        baseline_tok_s=state.baseline_tok_s,
        measured_steps=steps,
    )
    best = best_steps(curve[: len(known) or steps])
    wide = TREES if line is not None and topk == 1 else ()
    return DraftSteps(
        steps=steps,
        topk=topk,
        tokens=tokens_of(measured),
        curve=curve,
        positions=len(known),
        line=line,
        other_streams=other_streams,
        gaps=costs.other_ms / state.cycle_ms,
        needs=tuple(tree_need(grown, best, measured_steps=steps, topk=item) for item in wide),
    )


def draft_steps_lines(found: DraftSteps) -> list[str]:
    """The model in words: the best number of steps, and trees."""
    best, beyond = found.best, found.beyond
    said = f"{count(best.steps, 'draft step')} would be best, {best.speedup:.2f}x ({best.tok_s:.0f} tok/s)"
    if best.steps == found.steps:
        said = f"{count(found.steps, 'draft step')}, as now, are best"
    if best.speedup <= 1:
        said = f"no number of draft steps wins; {said}"
    if not found.positions:
        said += "; with one chance of acceptance for all positions, since no histogram is reported"
    if beyond is not None:
        last = found.positions or found.steps
        said += f"; were positions beyond {last} accepted as {last} is, {beyond.steps} would give {beyond.speedup:.2f}x"
    if found.gaps >= NOTABLE_GAPS:
        said += f"; the {100 * found.gaps:.0f} % of a cycle that lie in no kernel are taken to stay"
    if found.topk != 1:
        tokens = "" if found.tokens is None else f" and {found.tokens} tokens"
        return [f"modelled from these costs (tree of topk {found.topk}{tokens} as measured): {said}"]
    trees = [item.strip() for item in tree_lines(found.needs, best.accept_length)]
    return [f"modelled from these costs (chain, verify {_grows(found)}): {said}", " ".join(trees)]


def acceptance(measured: Measured) -> list[float]:
    """Chance of acceptance by draft position, over all requests; empty where no histogram is reported.

    SGLang ends a histogram at the last number of tokens that occurred. Positions behind it, up to the draft
    steps, were reached whenever all before them were accepted, and never accepted.
    """
    histograms = [r.accept_histogram for s in measured.samples for r in s.requests if r.accept_histogram]
    if not histograms:
        return []
    steps = measured.samples[0].identity.resolved.get("speculative_num_steps")
    longest = max([*map(len, histograms), steps + 1 if isinstance(steps, int) else 0])
    total = [sum(h[i] for h in histograms if i < len(h)) for i in range(longest)]
    return [chance for chance in position_acceptance(total) if chance is not None]


def resolved_steps(measured: Measured, accept_length: float) -> int | None:
    """Draft steps as resolved; ``None`` when not told, or when more tokens came than they can give."""
    steps = measured.samples[0].identity.resolved.get("speculative_num_steps")
    return steps if isinstance(steps, int) and accept_length <= steps + 1 else None


def _line(passes: Sequence[VerifyPass], streams: int) -> tuple[CostLine | None, bool]:
    """Through passes of as many streams, where these differ in tokens; else through all.

    More streams bring their own keys, values and attention: what they cost is no price of a draft token, but it
    bounds it.
    """
    alike = cost_line([(item.tokens, item.ms) for item in passes if item.streams == streams])
    if alike is not None:
        return alike, False
    line = cost_line([(item.tokens, item.ms) for item in passes])
    return line, line is not None


def _grows(found: DraftSteps) -> str:
    if found.line is None:
        return "as measured"
    sizes = sorted({tokens for tokens, _ in found.line.points})
    streams = ", of other streams too" if found.other_streams else ""
    return f"{found.line.per_token_ms:.3f} ms a token more, from passes of {', '.join(map(str, sizes))} tokens{streams}"
