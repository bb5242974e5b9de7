"""``tokgate breakeven``: whether speculation pays, from three figures."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated

import typer

from tokgate.analysis.breakeven import (
    StepCosts,
    best_steps,
    break_even,
    constant_acceptance,
    modelled_curve,
)
from tokgate.errors import UsageFault
from tokgate.report.explain_breakeven import break_even_lines, curve_lines

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
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Print the break-even accept length, the predicted rate, the verdict and the nearer lever."""
    for name, value in (("--draft-ms", draft_ms), ("--extend-ms", extend_ms), ("--other-ms", other_ms)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageFault(f"{name} must be a time of 0 ms or more, not {value:g}")
    found = break_even(
        baseline_tok_s=baseline_tok_s,
        cycle_ms=cycle_ms,
        accept_length=accept_length,
        measured_tok_s=measured_tok_s,
        draft_steps=draft_steps,
    )
    curve = None
    if draft_ms is not None:
        if draft_steps is None:
            raise UsageFault("--draft-ms models other step counts: give --draft-steps too")
        verify_ms = cycle_ms - draft_ms * draft_steps - extend_ms - other_ms
        if verify_ms <= 0:
            raise UsageFault(f"draft, extend and the rest leave {verify_ms:.1f} ms of the cycle for verify")
        curve = modelled_curve(
            StepCosts(verify_ms, draft_ms, extend_ms, other_ms),
            [constant_acceptance(accept_length, draft_steps)],
            baseline_tok_s=baseline_tok_s,
            measured_steps=draft_steps,
        )
    if as_json:
        record = asdict(found) | {"speedup": found.speedup, "wins": found.wins}
        record["nearer"] = found.nearer.name if found.nearer else None
        if curve is not None:
            record["curve"] = [asdict(point) for point in curve]
            record["best_steps"] = best_steps(curve).steps
        print(json.dumps(record, indent=2))
        return
    lines = break_even_lines(found)
    if curve is not None:
        lines += curve_lines(curve, measured_steps=draft_steps)
    print("\n".join(lines))
