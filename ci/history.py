"""Pool two runs of one build as A/A launches, and remember their figures: the nightly's memory.

``--kept DIR`` gets ``calibrations/HOST_CLASS/PROFILE/WORKLOAD.json`` (of `tokgate calibrate`) and
``history.jsonl``: a line a run, profile, workload and metric. The last nights go into the job's summary.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokgate.errors import TokgateError
from tokgate.load.sample import Sample, read_samples, write_json

METRIC = "output_tok_s"
NIGHTS_SHOWN = 14
STARTUP = "startup"


def main() -> int:
    """Pool, remember, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs=2, help="folders of the two runs")
    parser.add_argument("--kept", type=Path, required=True, help="folder that lasts")
    options = parser.parse_args()
    try:
        pooled = pool(options.runs, options.kept / "calibrations")
        lines = remember(options.runs, options.kept / "history.jsonl")
    except TokgateError as error:
        print(f"history: {error}", file=sys.stderr)
        return error.exit_code
    print(f"history: {pooled} calibrations, {len(lines)} lines")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as stream:
            stream.write(table(options.kept / "history.jsonl") + "\n")
    return 0


def usable(run: Path) -> list[Sample]:
    """The run's Samples that count: not void, and not of a start."""
    samples = read_samples(run / "samples")
    return [s for s in samples if not s.void and s.identity.workload != STARTUP]


def pool(runs: Sequence[Path], kept: Path) -> int:
    """Add one A/A block to the calibration of each profile and workload that both runs measured."""
    from typer.testing import CliRunner

    from tokgate.cli.calibrate import app

    by_case: dict[tuple[str, str, str], dict[Path, list[Sample]]] = {}
    for run in runs:
        for sample in usable(run):
            who = sample.identity
            case = by_case.setdefault((who.host_class, who.profile, who.workload), {})
            case.setdefault(run, []).append(sample)
    count = 0
    for (host_class, profile, workload), found in sorted(by_case.items()):
        if len(found) < 2:
            print(f"history: {workload}[{profile}] was measured by one run only: no A/A block")
            continue
        folder = kept / host_class / profile
        gathered = folder / f".{workload}.samples.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(gathered, [s.to_json() for samples in found.values() for s in samples])
        command = ["pool", str(gathered), "--out", str(folder / f"{workload}.json"), "--metric", METRIC]
        done = CliRunner().invoke(app, command)
        gathered.unlink()
        if isinstance(done.exception, TokgateError):
            raise done.exception
        if done.exit_code:
            raise TokgateError(f"tokgate calibrate {' '.join(command)} failed", [done.output.strip()])
        count += 1
    return count


def remember(runs: Iterable[Path], path: Path) -> list[str]:
    """Append the medians of each run; a run that is there already is not added twice."""
    known = {json.loads(line)["run"] for line in read_lines(path)}
    lines: list[str] = []
    for run in runs:
        if run.name in known:
            continue
        values: dict[tuple[str, ...], list[float]] = {}
        for sample in usable(run):
            who = sample.identity
            for metric, value in sample.metrics.items():
                key = (who.host_class, who.sglang_version, who.profile, who.workload, metric)
                values.setdefault(key, []).append(value)
        for case, found in sorted(values.items()):
            names = ("host_class", "sglang", "profile", "workload", "metric")
            record = {"run": run.name, **dict(zip(names, case, strict=True))}
            lines.append(json.dumps({**record, "median": statistics.median(found), "runs": len(found)}))
    if lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write("".join(f"{line}\n" for line in lines))
    return lines


def table(path: Path) -> str:
    """The last runs of each case as Markdown: output tokens a second."""
    cases: dict[tuple[str, str], list[tuple[str, str, float]]] = {}
    for line in read_lines(path):
        found = json.loads(line)
        if found["metric"] == METRIC:
            case = cases.setdefault((found["profile"], found["workload"]), [])
            case.append((found["run"], found["sglang"], found["median"]))
    rows = [
        f"### {METRIC}, last {NIGHTS_SHOWN} runs",
        "",
        "| case | SGLang | oldest to newest |",
        "| --- | --- | --- |",
    ]
    for (profile, workload), series in sorted(cases.items()):
        last = series[-NIGHTS_SHOWN:]
        figures = ", ".join(f"{value:.1f}" for _, _, value in last)
        rows.append(f"| {workload}[{profile}] | {last[-1][1]} | {figures} |")
    return "\n".join(rows)


def read_lines(path: Path) -> list[str]:
    """Whole lines of a file that may not exist; one that a crash cut short is left out."""
    if not path.is_file():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


if __name__ == "__main__":
    sys.exit(main())
