"""What bumps of real SGLang said: the records that are kept; ``benchmarks.bump.page`` makes tables of them.

    python -m benchmarks.bump.record --take OUT --name 8b-baseline     # keeps what benchmarks.bump.h200 left in OUT
    python -m benchmarks.bump.record --take results/bump-... --name cli-eagle3      # or what `tokgate bump` left

A record is a ``summary.json`` of :mod:`benchmarks.bump.h200` or the ``report.json`` of a ``tokgate bump``. It holds the
runs from which every verdict over blocks is judged again. ``NAME.launches.json`` beside the former has every launch,
those of blocks that were cut short too, and void runs with their causes. Records of the CPU engine are kept apart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bump.comparison import without_paths
from tokgate.analysis.blocks import differences, pair
from tokgate.analysis.decision import Decision
from tokgate.analysis.looks import Plan
from tokgate.analysis.sequential import judge

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "tests" / "assets" / "h200-bump"
CPU_RECORDS = ROOT / "tests" / "assets" / "cpu-bump"
LAUNCHES = ".launches.json"
BETA = 0.05
"""Of a record that does not say its own."""

PURPOSE = {
    "new": "{old} -> {new}",
    "again": "{old} against itself",
    "slow": "{old}, planted {delay}",
    "slightly": "{old}, planted {delay}",
}


@dataclass(frozen=True, slots=True)
class Bump:
    """One recorded bump.

    Attributes:
        name: of the record's file, and of the comparison in it where there are several.
        what: what was compared, in words.
        right: kinds of the speed verdict that are right; empty where nothing is known beforehand.
        foreseen: the loss that all the blocks asked for would find, said before any was measured; ``-`` without.
        report: as ``report.json`` has it.
        record: name of the record's file.
        began_at: UTC, ISO 8601.
    """

    name: str
    what: str
    right: tuple[str, ...]
    foreseen: str
    report: Mapping[str, Any]
    record: str
    began_at: str

    @property
    def verdicts(self) -> list[Mapping[str, Any]]:
        return list(self.report["verdicts"])

    def over_blocks(self) -> list[Mapping[str, Any]]:
        """Verdicts that hold the runs from which they were judged."""
        return [verdict for verdict in self.verdicts if verdict["evidence"].get("old_runs")]


def bumps(folder: Path = RECORDS) -> Iterator[Bump]:
    """Every bump of every record, the earliest record first."""
    known = dict(launches(folder))
    found: list[tuple[str, str, Any]] = []
    for path in folder.glob("*.json"):
        if path.name.endswith(LAUNCHES):
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        began = data.get("began_at") or min(launch["began_at"] for launch in known[path.stem])
        found.append((began, path.stem, data))
    for began, record, data in sorted(found, key=lambda item: item[:2]):
        if "comparisons" not in data:
            yield Bump(record, f"{data['old']} -> {data['new']}", (), "-", data, record, began)
            continue
        versions = next(item["report"] for item in data["comparisons"] if item["name"] == "new")
        for item in data["comparisons"]:
            delay = item["delay"]
            told = "" if delay is None else f"{delay['ms']:g} ms a step on the {delay['on'].upper()}"
            what = PURPOSE[item["name"]].format(old=versions["old"], new=versions["new"], delay=told)
            right = () if item["name"] == "new" else tuple(item["right"])
            yield Bump(
                f"{record}/{item['name']}",
                what,
                right,
                f"-{item['detectable_beforehand_percent']:.0f} % by {data['blocks_asked']}",
                {**item["report"], "facts": {"blocks_max": data["blocks_asked"], **item["report"]["facts"]}},
                record,
                began,
            )


def judged_again(verdict: Mapping[str, Any], facts: Mapping[str, Any]) -> Decision:
    """The decision on a verdict's own runs, block by block as they came: the first that decides stands."""
    told = verdict["evidence"]
    plan = Plan(
        told["limit_percent"] / 100,
        told["better"],
        told["alpha"],
        facts.get("beta", BETA),
        facts["blocks_max"],
    )
    found = differences(pair(told["old_runs"], told["new_runs"], plan.better))
    decision = judge(found[:1], plan)
    for n in range(2, len(found) + 1):
        if decision.kind != "INCONCLUSIVE":
            break
        decision = judge(found[:n], plan)
    return decision


def launches_of(out: Path) -> list[dict[str, Any]]:
    """Every launch of a folder of blocks, in order, from its Samples."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(out.glob("blocks-*/*/samples/*/*/*.sample.json")):
        sample = json.loads(path.read_text(encoding="utf-8"))
        who, metrics = sample["identity"], sample["metrics"]
        arm = path.relative_to(out).parts[1]
        launch = found.setdefault(
            (who["launch"], arm),
            {"server": arm, "sglang": who["sglang_version"], "startup_s": None, "runs": []},
        )
        if who["workload"] == "startup":
            launch["began_at"], launch["startup_s"] = who["started_at"], round(metrics["startup_s"], 1)
            continue
        launch["runs"].append(
            {
                "run": who["run"],
                "output_tok_s": round(metrics["output_tok_s"], 2),
                "step_ms_p50": round(metrics["step_ms_p50"], 3),
                "void": sorted({reason["cause"] for reason in sample["void"]}),
            }
        )
    for launch in found.values():
        launch["runs"].sort(key=lambda run: int(run["run"]))
    return sorted(found.values(), key=lambda launch: (launch["began_at"], launch["server"]))


def launches(folder: Path = RECORDS) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Name of each record that has its launches, and these."""
    for path in sorted(folder.glob(f"*{LAUNCHES}")):
        yield path.name.removesuffix(LAUNCHES), json.loads(path.read_text(encoding="utf-8"))


def take(out: Path, name: str) -> None:
    """Keep what :mod:`benchmarks.bump.h200`, or a ``tokgate bump``, left.

    Raises:
        SystemExit: neither did.
    """
    if (out / "summary.json").is_file():
        RECORDS.mkdir(parents=True, exist_ok=True)
        (RECORDS / f"{name}.json").write_bytes((out / "summary.json").read_bytes())
        text = "[\n" + ",\n".join(json.dumps(launch) for launch in launches_of(out)) + "\n]\n"
        (RECORDS / f"{name}{LAUNCHES}").write_text(text, encoding="utf-8")
        return
    if not (out / "report.json").is_file():
        raise SystemExit(f"{out} has neither summary.json nor report.json")
    report = without_paths(json.loads((out / "report.json").read_text(encoding="utf-8")))
    blocks = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("blocks/*/blocks/*.json")]
    times = {"began_at": min(block["began_at"] for block in blocks)}
    folder = CPU_RECORDS if "host class cpu-" in report["header"][0] else RECORDS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(times | report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--take", type=Path, required=True, metavar="OUT", help="keep what was left there")
    parser.add_argument("--name", required=True, help="of the record that is kept")
    asked = parser.parse_args()
    take(asked.take, asked.name)


if __name__ == "__main__":
    main()
