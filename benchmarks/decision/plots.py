"""Power and cost curves of the decision benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.decision.report import OURS, OURS_LOOSE, SPRT, Cell


def draw(changes: Sequence[float], found: Mapping[str, list[Cell]], folder: Path) -> None:
    """Write ``decision-power.png`` and ``decision-cost.png`` into the folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    x = [100 * change for change in changes]
    bold = {OURS: "black", OURS_LOOSE: "tab:blue"}
    for name, label, names in (
        ("power", "called a regression, share", list(found)),
        ("cost", "blocks, mean", [OURS, OURS_LOOSE, *SPRT.values()]),
    ):
        figure, axes = pyplot.subplots(figsize=(6.4, 4.0), dpi=80)
        for rule in names:
            y = [cell.rate if name == "power" else cell.cost for cell in found[rule]]
            axes.plot(
                x,
                y,
                label=rule,
                color=bold.get(rule),
                linewidth=2.2 if rule in bold else 1.0,
                linestyle="--" if rule in SPRT.values() else "-",
            )
        axes.axvline(0, color="grey", linewidth=0.6)
        axes.axvline(-3, color="grey", linewidth=0.6, linestyle=":")
        axes.set_xlabel("true change, %  (typical noise: launch 1 %, run 2 %)")
        axes.set_ylabel(label)
        axes.legend(fontsize=6.5)
        figure.tight_layout()
        figure.savefig(folder / f"decision-{name}.png", metadata={"Software": None})
        pyplot.close(figure)
