"""A bump as one HTML page that needs nothing else: table, messages, plots as SVG inside."""

from __future__ import annotations

import io
import math
from importlib import resources
from typing import Any

from tokgate.report.bump_record import HEADINGS, BumpReport, blocks_text, cells
from tokgate.report.rows import counts
from tokgate.verdict import Verdict

POWER_SERIES = 250
POWER_CHANGES = 9


def page(report: BumpReport) -> str:
    """The page. Without matplotlib it has no plots, and says so."""
    from jinja2 import Environment, select_autoescape

    environment = Environment(autoescape=select_autoescape(default=True, default_for_string=True))
    template = environment.from_string(
        (resources.files("tokgate.report") / "bump.html.j2").read_text(encoding="utf-8")
    )
    plots: list[dict[str, str]] = []
    missing = ""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        missing = "matplotlib is not installed where this page was made: no plots"
    else:
        plots = [{"name": f"{v.subject} {v.evidence['metric']}", "svg": plot(v)} for v in report.speed()]
    return template.render(
        report=report,
        counts=f"{counts(report.verdicts)}; {blocks_text(report)}",
        headings=HEADINGS,
        rows=[(verdict.outcome, cells(verdict)) for verdict in report.ordered()],
        loud=[verdict.text() for verdict in report.ordered()],
        plots=plots,
        missing=missing,
    )


def plot(verdict: Verdict) -> str:
    """Samples per block, block ratios with their interval and the limit, and the power of such blocks."""
    from matplotlib.figure import Figure

    told = verdict.evidence
    figure = Figure(figsize=(11, 3.1), layout="constrained")
    samples, ratios, power = figure.subplots(1, 3)
    _samples(samples, told)
    _ratios(ratios, told)
    _power(power, told)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawn = buffer.getvalue()
    return drawn[drawn.index("<svg") :]


def _samples(axes: Any, told: Any) -> None:
    for shift, side, color in ((-0.12, "old", "tab:gray"), (0.12, "new", "tab:blue")):
        for number, runs in enumerate(told[f"{side}_runs"], start=1):
            axes.plot(
                [number + shift] * len(runs), runs, ".", color=color, label=side if number == 1 else None
            )
    axes.set_xlabel("block")
    axes.set_ylabel(f"{told['metric']} ({told['unit']})")
    axes.legend(fontsize="small")


def _ratios(axes: Any, told: Any) -> None:
    changes = [100 * (ratio - 1) for ratio in told["block_ratios"]]
    axes.plot(range(1, len(changes) + 1), changes, "o", color="tab:blue", markersize=4)
    axes.axhline(0, color="black", linewidth=0.6)
    limit = told["limit_percent"] * (-1 if told["better"] == "higher" else 1)
    axes.axhline(limit, color="tab:red", linewidth=0.8, linestyle="--", label=f"limit {limit:+g} %")
    if told.get("interval_percent"):
        low, high = told["interval_percent"]
        spread = max(abs(change) for change in (*changes, limit)) * 3 + 1
        axes.axhspan(
            max(low, -spread), min(high, spread), alpha=0.15, color="tab:blue", label="95 % interval"
        )
    axes.set_xlabel("block")
    axes.set_ylabel("new against old, %")
    axes.legend(fontsize="small")


def _power(axes: Any, told: Any) -> None:
    """Chance of each verdict by true change, at the scatter of today."""
    import numpy as np

    from tokgate.analysis.looks import Plan
    from tokgate.analysis.power import power_curve

    scatter = told.get("scatter_percent") or told.get("scatter_known_percent")
    if not scatter:
        axes.text(0.5, 0.5, "scatter not known:\nno power to show", ha="center", va="center")
        axes.set_axis_off()
        return
    limit = told["limit_percent"] / 100
    plan = Plan(limit, told["better"], told["alpha"], blocks_max=max(3, int(told["blocks"])))
    worst = min(0.9, max(4 * limit, 3 * scatter / 100 / math.sqrt(plan.blocks_max)))
    sign = -1 if told["better"] == "higher" else 1
    changes = [float(sign * worst * step) for step in np.linspace(0, 1, POWER_CHANGES)]
    points = power_curve(changes, scatter / 100, plan, None, series=POWER_SERIES)
    x = [100 * point.change for point in points]
    axes.plot(x, [100 * p.regression for p in points], color="tab:red", label="REGRESSION")
    axes.plot(x, [100 * (p.passed + p.improved) for p in points], color="tab:green", label="PASS")
    axes.plot(x, [100 * p.undecided for p in points], color="tab:gray", label="undecided")
    axes.set_xlabel(f"true change, % ({plan.blocks_max} blocks, no history)")
    axes.set_ylabel("chance, %")
    axes.legend(fontsize="small")
