"""``tokgate breakeven``: whether speculation pays, from three figures."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Annotated

import typer

from tokgate.analysis.breakeven import BreakEven, break_even
from tokgate.analysis.step_model import (
    TREES,
    ModelledPoint,
    StepCosts,
    TreeNeed,
    best_steps,
    constant_acceptance,
    implied_accept_length,
    modelled_curve,
    tree_need,
)
from tokgate.errors import UsageFault
from tokgate.report.explain_breakeven import break_even_lines, curve_lines, tree_lines

# Tokens that the requested length cuts off the last pass count in its histogram and not in its accept length.
CUT_OFF_SHARE = 0.05

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def breakeven(
    baseline_tok_s: Annotated[float, typer.Option(help="rate without speculation, tokens a second")],
    cycle_ms: Annotated[float, typer.Option(help="time of one verify cycle, ms")],
    accept_length: Annotated[float, typer.Option(help="tokens a verify pass, bonus token included")],
    measured_tok_s: Annotated[
        float | None, typer.Option(help="rate with speculation: what the cycle does not explain is named")
    ] = None,
    draft_steps: Annotated[int | None, typer.Option(help="bounds the accept length at steps + 1")] = None,
    draft_ms: Annotated[
        float | None, typer.Option(help="one draft step, ms: models other step counts")
    ] = None,
    extend_ms: Annotated[float, typer.Option(help="draft extend, ms")] = 0.0,
    other_ms: Annotated[float, typer.Option(help="gaps and the rest of a cycle, ms")] = 0.0,
    acceptance: Annotated[
        str | None,
        typer.Option(help="chances by draft position, of those reached: 0.8,0.6,0.5; one for all without"),
    ] = None,
    verify_per_token_ms: Annotated[
        float | None,
        typer.Option(help="what a token more costs in the verify pass, ms: holds trees against the chain"),
    ] = None,
    topk: Annotated[int, typer.Option(help="of the server whose figures these are; 1 is a chain")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Print the break-even accept length, the predicted rate, the verdict and the nearer lever.

    A calculator: the exit code is 0 whether speculation pays or not, and 2 for figures that cannot be.
    """
    times = {
        "--draft-ms": draft_ms,
        "--extend-ms": extend_ms,
        "--other-ms": other_ms,
        "--verify-per-token-ms": verify_per_token_ms,
    }
    for name, value in times.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageFault(f"{name} must be a time of 0 ms or more, not {value:g}")
    if topk < 1:
        raise UsageFault(f"--topk is 1 at least, got {topk}")
    if draft_ms is None and (acceptance is not None or verify_per_token_ms is not None):
        raise UsageFault(
            "--acceptance and --verify-per-token-ms model other step counts: give --draft-ms too"
        )
    found = break_even(
        baseline_tok_s=baseline_tok_s,
        cycle_ms=cycle_ms,
        accept_length=accept_length,
        measured_tok_s=measured_tok_s,
        draft_steps=draft_steps,
    )
    modelled = None
    if draft_ms is not None:
        if draft_steps is None:
            raise UsageFault("--draft-ms models other step counts: give --draft-steps too")
        verify_ms = cycle_ms - draft_ms * draft_steps - extend_ms - other_ms
        if verify_ms <= 0:
            raise UsageFault(f"draft, extend and the rest leave {verify_ms:.1f} ms of the cycle for verify")
        costs = StepCosts(verify_ms, draft_ms, extend_ms, other_ms, verify_per_token_ms or 0.0)
        modelled = _Modelled(
            found, costs, draft_steps, topk, _chances(acceptance, accept_length, draft_steps)
        )
    if as_json:
        record = asdict(found) | {"speedup": found.speedup, "wins": found.wins}
        record["nearer"] = found.nearer.name if found.nearer else None
        print(json.dumps(record | (modelled.record() if modelled else {}), indent=2))
        return
    lines = break_even_lines(found)
    if modelled is not None:
        lines += modelled.lines(per_token_known=verify_per_token_ms is not None)
    print("\n".join(lines))


class _Modelled:
    """Other numbers of draft steps at these costs, and trees."""

    def __init__(
        self, found: BreakEven, costs: StepCosts, steps: int, topk: int, chances: list[float]
    ) -> None:
        self._costs, self._steps, self._topk = costs, steps, topk
        # The tokens of a tree are a setting of their own: a step more is no token more in its verify pass.
        along = costs if topk == 1 else replace(costs, verify_per_token_ms=0.0)
        self.curve: tuple[ModelledPoint, ...] = modelled_curve(
            along, chances, baseline_tok_s=found.baseline_tok_s, measured_steps=steps
        )

    def _needs(self) -> list[TreeNeed]:
        best = best_steps(self.curve)
        return [
            tree_need(self._costs, best, measured_steps=self._steps, topk=topk)
            for topk in (TREES if self._topk == 1 and self._costs.verify_per_token_ms else ())
        ]

    def record(self) -> dict[str, object]:
        return {
            "topk": self._topk,
            "curve": [asdict(point) for point in self.curve],
            "best_steps": best_steps(self.curve).steps,
            "trees": [asdict(need) | {"possible": need.possible} for need in self._needs()],
        }

    def lines(self, *, per_token_known: bool) -> list[str]:
        lines = curve_lines(self.curve, measured_steps=self._steps, topk=self._topk, growing=per_token_known)
        if self._topk > 1:
            return lines
        return lines + tree_lines(self._needs(), best_steps(self.curve).accept_length)


def _chances(given: str | None, accept_length: float, steps: int) -> list[float]:
    """Acceptance by position; one chance for all positions, where none is given.

    Raises:
        UsageFault: no chances, or chances that mean another accept length.
    """
    if given is None:
        return [constant_acceptance(accept_length, steps)]
    parts = given.split(",")
    try:
        chances = [float(part) for part in parts]
    except ValueError:
        raise UsageFault(f"--acceptance takes chances like 0.8,0.6,0.5; got '{given}'") from None
    implied = implied_accept_length(chances, steps)
    rounding = [_rounding(part) for part in parts]
    least, most = (
        implied_accept_length(
            [min(1.0, max(0.0, chance + sign * by)) for chance, by in zip(chances, rounding, strict=True)],
            steps,
        )
        for sign in (-1, 1)
    )
    if not least <= accept_length * (1 + CUT_OFF_SHARE) or not accept_length * (1 - CUT_OFF_SHARE) <= most:
        raise UsageFault(
            f"--acceptance {given} means an accept length of {implied:.2f} at {steps} draft steps; "
            f"--accept-length says {accept_length:g}",
            ["chances are of the passes that reached a position; without --acceptance one is taken for all"],
        )
    return chances


def _rounding(chance: str) -> float:
    """By how much a chance may be off as it is written: half of its last digit, and of 1 or 0 half a tenth."""
    exponent = Decimal(chance.strip()).as_tuple().exponent
    return 0.5 * 10.0 ** min(int(exponent), -1)
