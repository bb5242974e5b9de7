"""The page of what ``benchmarks.tensor_parallel`` saw, from the folders it wrote.

    python -m benchmarks.tensor_parallel.table OUT [OUT ...] [--write]

Prints Markdown; with ``--write`` it takes the place of what stands between the marks of the page.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.page import put
from benchmarks.tensor_parallel.exchange import LONG_US, exchanges, waits
from tokgate.gate.results import read_verdicts
from tokgate.load.sample import read_samples

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "tensor_parallel.md"
BEGIN, END = "<!-- tensor parallel: begin -->", "<!-- tensor parallel: end -->"
WORDS = {True: "seen", False: "**not seen**", None: "left out"}
# What differs from machine to machine and tells nobody anything.
_PRIVATE = (
    (r" \(\d+\)", ""),
    (r"(pid|of) \d+ ", r"\1 "),
    (r"GPU-[0-9a-f-]{8,}", "GPU-..."),
    (r"(?<![\w.])/\S*/", ""),
)
_LONGEST = 150
SLOW_CPU, MARK = "slow_cpu", " \\*"


def page(out: Path) -> str:
    """The tables in Markdown: where it ran, captures by rank, and everything that was asked for.

    Args:
        out: what the benchmark wrote, or the folder of a gate's run alone.
    """
    if (out / "run.json").is_file():
        run = _read(out / "run.json")
        said = (
            f"{_when({}, run)}A gate alone: {run['engine_kind']}, SGLang {run['sglang']}, {run['host_class']}; "
            f"its run is {run['status']}."
        )
        return "\n".join([said, "", *figures(out), *exchange(out)]).rstrip()
    host = json.loads((out / "host.json").read_text(encoding="utf-8"))
    engine = yaml.safe_load((out / "gpu" / "engine.yaml").read_text(encoding="utf-8"))
    seen = json.loads((out / "seen.json").read_text(encoding="utf-8"))
    look = _read(out / "look.json")
    gate = next((path.parent for path in sorted(out.glob("gates/two/*-*/run.json"))), None)
    run = _read(gate / "run.json") if gate else {}
    lines = [
        f"{_when(host, run)}Engine: {engine['kind']}, SGLang {engine['version']}{_libraries(look)}. {_where(host)} "
        f"{sum(ok is True for _, _, ok, _ in seen)} of {len(seen)} seen.",
        "",
        *_not_seen(seen, run),
    ]
    if look:
        lines += _captures(look["captures"])
    if gate:
        lines += figures(gate)
        lines += exchange(gate)
    lines += _waits(out)
    lines += ["| part | asked | | what it said |", "|---|---|---|---|"]
    lines += [f"| {part} | {what} | {WORDS[ok]} | {_said(said)} |" for part, what, ok, said in seen]
    return "\n".join(lines)


def pages(outs: Sequence[Path]) -> str:
    """The tables of several folders, one after the other."""
    return "\n\n".join(page(out) for out in outs)


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _when(host: dict[str, Any], run: dict[str, Any]) -> str:
    """The day; of the gate also from when to when."""
    began = host.get("began_at") or run.get("started_at")
    if began is None:
        return ""
    gate = (
        f" (the gate {run['started_at'][11:16]} to {run['ended_at'][11:16]} UTC)" if "ended_at" in run else ""
    )
    return f"{began[:10]}{gate}. "


def _libraries(look: dict[str, Any]) -> str:
    workers = [own for name, own in look.get("libraries", {}).items() if "scheduler" in name]
    told = sorted({f", torch {own.get('torch')}, NCCL {own.get('NCCL')}" for own in workers})
    return told[0] if len(told) == 1 else ""


def _not_seen(seen: list[list[Any]], run: dict[str, Any]) -> list[str]:
    """What a reader must not take for shown, before all that was."""
    lines = [f"- {part}: {what}: {_said(said)}" for part, what, ok, said in seen if ok is False]
    if run and run.get("status") != "complete":
        lines.append(
            f"- the gate's run is {run.get('status', 'without an end')}: of it only what was measured wholly "
            "can be accepted"
        )
    return ["Not seen:", "", *lines, ""] if lines else []


def figures(gate: Path) -> list[str]:
    """Medians of the runs that the gate stored, by profile; where fewer than two count, those that are void by a slow
    CPU alone count too, and are marked."""
    lines = [
        "| profile | runs | output, tok/s | of the runs | TTFT, ms | step, ms | accept length | start-up, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    samples = read_samples(gate / "samples")
    marked = False
    for profile in sorted({sample.identity.profile for sample in samples}):
        own = [s for s in samples if s.identity.profile == profile]
        good = [s for s in own if not s.void]
        slowed = sum("output_tok_s" in s.metrics for s in good) < 2
        if slowed:
            good = [s for s in own if {void.cause for void in s.void} <= {SLOW_CPU}]
        slowed = slowed and any(s.void for s in good)
        marked = marked or slowed
        mine = [s.metrics for s in good]
        speed = [own["output_tok_s"] for own in mine if "output_tok_s" in own]
        spread = f"{min(speed):.0f} to {max(speed):.0f}" if speed else "-"
        lines.append(
            f"| {profile}{MARK if slowed else ''} | {len(speed)} | {_median(mine, 'output_tok_s', 1)} | {spread} "
            f"| {_median(mine, 'ttft_s_p50', 1, 1e3)} | {_median(mine, 'step_ms_p50', 2)} "
            f"| {_median(mine, 'accept_length', 3)} | {_median(mine, 'startup_s', 1)} |"
        )
    if marked:
        lines += [
            "",
            "\\* All its runs were void, since fixed work took longer on the scheduler's CPU than on an idle one.",
        ]
    return [*lines, ""]


def exchange(gate: Path) -> list[str]:
    """Where a step goes on rank 0, the exchange between ranks apart; from the gate's own traces, if it took any."""
    told = [v.evidence for v in read_verdicts(gate) if isinstance(v.evidence.get("cycles"), dict)]
    rows = {}
    for evidence in told:
        cycles, whole_ms = evidence["cycles"], evidence.get("effective_cycle_ms")
        assert isinstance(cycles, dict)
        if not isinstance(whole_ms, float) or "communication_ms" not in cycles:
            continue
        busy, between = cycles["busy_ms"], cycles["communication_ms"]
        parts = ", ".join(f"{part} {ms:.2f}" for part, ms in cycles["parts_ms"].items())
        rows[f"{evidence['workload']}[{evidence['profile']}]"] = (
            f"{cycles['launches_per_step']} | {parts} | {busy:.2f} | {between:.2f} | {100 * between / busy:.0f} % "
            f"| {whole_ms:.2f} | {100 * (1 - busy / whole_ms):.0f} %"
        )
    if not rows:
        return []
    return [
        "| traced, rank 0 | graphs a step | parts, ms | in kernels, ms | exchange, ms | of the kernels "
        "| step or cycle, ms | in no kernel |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
        *(f"| {name} | {row} |" for name, row in rows.items()),
        "",
    ]


def _median(runs: Sequence[Mapping[str, float]], metric: str, digits: int, factor: float = 1.0) -> str:
    values = [own[metric] * factor for own in runs if metric in own]
    return f"{median(values):.{digits}f}" if values else "-"


def _waits(out: Path) -> list[str]:
    """Of two ranks' traces: the exchanges of the one that waited."""
    files = sorted(out.glob("trace/*.trace.json.gz"))
    if len(files) != 2 or not all(exchanges(file) for file in files):
        return []
    first, second = (waits(files[0], files[1]), waits(files[1], files[0]))
    (name, own), (_, other) = sorted(
        (("TP0", first), ("TP1", second)), key=lambda item: item[1].whole_ms, reverse=True
    )
    return [
        f"{own.count} exchanges in the trace: {own.whole_ms:.0f} ms in them on {name}, {other.whole_ms:.0f} ms on "
        f"the other rank. {own.long} of them are longer than {LONG_US / 1e3:g} ms on {name} ({own.long_ms:.0f} ms; "
        f"{other.long} on the other): the other rank began them later, by {own.explained_ms:.0f} ms in all. The "
        f"first {own.row} are long without a short one between them, {own.row_ms:.0f} ms; all after them take "
        f"{own.rest_ms:.0f} ms on {name}, {own.other_rest_ms:.0f} ms on the other.",
        "",
    ]


def _where(host: dict[str, Any]) -> str:
    if isinstance(host["gpus"], str):
        return f"No GPU ({host['gpus']})."
    links = ", ".join(f"{pair}: {link}" for pair, link in host["links"].items())
    return f"GPUs: {', '.join(host['gpus'])} ({links}), driver {host['driver']}, {host['cpus']} CPUs."


def _captures(captures: list[dict[str, Any]]) -> list[str]:
    lines = ["| capture | rank | begun, s after the launch | s | GB |", "|---|---|---:|---:|---:|"]
    for own in sorted(captures, key=lambda item: (item["begun_s"] or 0.0, item["rank"])):
        begun = "-" if own["begun_s"] is None else f"{own['begun_s']:.2f}"
        lines.append(f"| {own['kind']} | {own['rank']} | {begun} | {own['seconds']} | {own['gb']} |")
    return [*lines, ""]


def _said(text: str) -> str:
    for pattern, word in _PRIVATE:
        text = re.sub(pattern, word, text)
    text = " ".join(text.replace("|", "/").replace("<", "&lt;").split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def write(text: str) -> None:
    """Replace what stands between the marks of the page."""
    put(PAGE, BEGIN, END, text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "out", type=Path, nargs="+", help="what --out was; several are shown one after the other"
    )
    parser.add_argument("--write", action="store_true", help="put it into the documentation")
    options = parser.parse_args()
    text = pages(options.out)
    print(text)
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
