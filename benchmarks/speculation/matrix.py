"""The matrix of speculation on one GPU, by the gate itself: who wins, why, and what the profiler shows.

    python -m benchmarks.speculation.matrix --engine ENGINE.yaml --out OUT --budget-s 570 [--parts 1b,8b]

Part ``1b``: eight servers started at once, one measured at a time: baseline and EAGLE-3, with CUDA graphs and
without; attention mode decode where it is inert, and a pair of modes where it acts (prefill flashinfer, decode
triton); a pair at accept length 1.2, a net loss on purpose. Part ``8b``: baseline and EAGLE-3 with 3, 2 and 5 draft
steps of the larger preset. Part ``mixed``: those of ``8b`` and of ``1b`` what has no profile without graphs, which
cost most time. Everything is traced. Results stay in OUT/<part>/, a tar of each beside it, the table in OUT/table.txt.
Exit code 0 only when all that was asked was seen.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.config.engine import load_engine
from tokgate.config.profiles import load_profiles
from tokgate.errors import TokgateError
from tokgate.gate import modelstore
from tokgate.gate.results import find_run, read_verdicts
from tokgate.load.sample import read_samples
from tokgate.verdict import Kind, Verdict

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).parent / "config"
EIGHT = ("baseline-8b", "eagle3-8b", "eagle3-8b-steps-2", "eagle3-8b-steps-5")
HYBRID = ("hybrid-mode-prefill", "hybrid-mode-decode")
PARTS: Mapping[str, tuple[str, ...]] = {
    "1b": (
        "baseline",
        "baseline-eager",
        "eagle3-graphs",
        "eagle3-eager",
        "eagle3-attn-decode",
        "eagle3-loss",
        *HYBRID,
    ),
    "8b": EIGHT,
    # What matters most comes first: a budget that ends cuts off the last.
    "mixed": (*EIGHT, *HYBRID, "baseline", "eagle3-loss"),
}
TESTS = ("startup.py::test_startup", "speculation.py", "cuda_graphs.py", "attention_mode.py")
TRACE_STEPS = 16
GRACE_S = 45.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """Something that must be seen.

    Attributes:
        text: what.
        metric, subject: of the verdict that shows it.
        seen: whether the verdict does.
        partner: another profile that it takes.
    """

    text: str
    metric: str
    subject: str
    seen: Callable[[Verdict], bool]
    partner: str | None = None

    def applies(self, profiles: Collection[str]) -> bool:
        """Whether these profiles can show it."""
        one = self.subject.removesuffix("]").partition("[")[2]
        return one in profiles and (self.partner is None or self.partner in profiles)


def _kind(*kinds: Kind) -> Callable[[Verdict], bool]:
    return lambda verdict: verdict.kind in kinds


def _launches(number: int) -> Callable[[Verdict], bool]:
    def seen(verdict: Verdict) -> bool:
        cycles = verdict.evidence.get("cycles")
        return (
            verdict.kind is Kind.PASS and isinstance(cycles, dict) and cycles["launches_per_step"] == number
        )

    return seen


def _has(word: str) -> Callable[[Verdict], bool]:
    return lambda verdict: any(word in line for line in verdict.body)


HELD = (Kind.PASS, Kind.NET_LOSS, Kind.INCONCLUSIVE)
DECIDED = (Kind.PASS, Kind.NET_LOSS)
LAUNCHES, MODE, SPEED = "graph launches", "attention mode", "decode_tok_s"
ROOFLINE = "% of the memory's"
EXPECTED = (
    Expectation("1 graph launch a step: baseline", LAUNCHES, "chat-bs1[baseline]", _launches(1)),
    Expectation("3 graph launches: EAGLE-3", LAUNCHES, "chat-bs1[eagle3-graphs]", _launches(3)),
    Expectation("none without graphs", LAUNCHES, "chat-bs1[eagle3-eager]", _launches(0)),
    Expectation("EAGLE-3 at 2.5 held against it", SPEED, "chat-bs1[eagle3-graphs]", _kind(*HELD)),
    Expectation("EAGLE-3 at 1.2 a net loss", SPEED, "chat-bs1[eagle3-loss]", _kind(Kind.NET_LOSS)),
    Expectation(
        "graphs pay: EAGLE-3", "graphs on/off", "chat-bs1[eagle3-graphs]", _kind(Kind.PASS), "eagle3-eager"
    ),
    Expectation(
        "graphs pay: baseline", "graphs on/off", "chat-bs1[baseline]", _kind(Kind.PASS), "baseline-eager"
    ),
    Expectation("inert mode is vacuous", MODE, "chat-bs1[eagle3-attn-decode]", _kind(Kind.VACUOUS)),
    Expectation("modes that act compared", MODE, "chat-bs1[hybrid-mode-decode]", _has("the mode acts")),
    Expectation("roofline of 1 B", LAUNCHES, "chat-bs1[baseline]", _has(ROOFLINE)),
    Expectation("roofline of 8 B: decode", LAUNCHES, "chat-bs1[baseline-8b]", _has(ROOFLINE)),
    Expectation("roofline of 8 B: verify", LAUNCHES, "chat-bs1[eagle3-8b]", _has(ROOFLINE)),
    Expectation("3 graph launches: 8 B", LAUNCHES, "chat-bs1[eagle3-8b]", _launches(3)),
    Expectation("EAGLE-3 of 8 B decided", SPEED, "chat-bs1[eagle3-8b]", _kind(*DECIDED)),
    Expectation("2 draft steps decided", SPEED, "chat-bs1[eagle3-8b-steps-2]", _kind(*DECIDED)),
    Expectation("5 draft steps decided", SPEED, "chat-bs1[eagle3-8b-steps-5]", _kind(*DECIDED)),
    Expectation("a verify token has a price", SPEED, "chat-bs1[eagle3-8b]", _has("ms a token more")),
)


def main() -> int:
    """Run the parts that fit into the budget, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=570.0)
    parser.add_argument("--parts", default="1b", help="of 1b, 8b, mixed")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--together", type=int, default=8, help="servers up at once")
    parser.add_argument("--profiles", default="", help="only these of the part")
    given = parser.parse_args()
    parts = [part.strip() for part in given.parts.split(",")]
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    began = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    verdicts: list[Verdict] = []
    for part in parts:
        left = given.budget_s - (time.monotonic() - began)
        if left < 60:
            lines.append(f"part {part}: left out, {left:.0f} s of the budget are left")
            continue
        said, found = run_part(part, given, left)
        lines += said
        verdicts += found
    lines += checked({name for part in parts for name in chosen(part, given)}, verdicts)
    table = "\n".join(lines)
    (given.out / "table.txt").write_text(table + "\n", encoding="utf-8")
    print(table)
    return 0 if not any(line.startswith("NOT SEEN") for line in lines) and verdicts else 1


def run_part(part: str, given: argparse.Namespace, budget_s: float) -> tuple[list[str], list[Verdict]]:
    """One gate run, cut off by SIGINT when its time is over."""
    began = time.monotonic()
    out = given.out / part
    names = chosen(part, given)
    try:
        make_models(given.engine, names)
    except TokgateError as error:
        return [f"part {part}: {error}"], []
    made_s = time.monotonic() - began
    command = [
        sys.executable, "-m", "tokgate", "gate",
        *(f"perf_tests/test_{name}" for name in TESTS),
        f"--engine={given.engine}", f"--config-folder={CONFIG}", f"--profiles={','.join(names)}",
        f"--runs={given.runs}", f"--trace-steps={TRACE_STEPS}", f"--start-together={given.together}",
        f"--results={out}", f"--baselines={out / 'none'}", "-p", "no:cacheprovider", "-q",
    ]  # fmt: skip
    log = given.out / f"{part}.log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        code = wait(process, budget_s - made_s - GRACE_S - 10)
    measured_s = time.monotonic() - began - made_s
    said = [f"part {part}: models {made_s:.0f} s, gate {measured_s:.0f} s, exit code {code}"]
    try:
        folder = find_run(out.resolve(), "latest")
        verdicts = read_verdicts(folder)
        said += timing(folder)
    except TokgateError as error:
        return [*said, f"part {part}: {error}; see {log.name}"], []
    with tarfile.open(given.out / f"{part}.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=f"{part}/{folder.name}")
    return said, verdicts


def chosen(part: str, given: argparse.Namespace) -> list[str]:
    """Profiles of a part, in the order in which they are measured."""
    return [name for name in PARTS[part] if not given.profiles or name in given.profiles.split(",")]


def make_models(engine: str, names: Sequence[str]) -> None:
    """Make the pairs that the profiles serve, before any server starts."""
    profiles = load_profiles(CONFIG / "profiles.yaml")
    kind = "emulated" if engine.startswith("emulated") else load_engine(Path(engine)).kind
    if kind == "emulated":
        return
    wanted = {profiles.get(name).model or profiles.default_model[kind] for name in names}
    models = [profiles.models[name] for name in sorted(wanted)]
    for model in models:
        assert model.preset is not None
        modelstore.pair(model.preset, seed=model.seed, accept_length=model.accept_length)


def wait(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """The exit code; past the limit the run is interrupted, which keeps what it has, then killed."""
    steps = ((signal.SIGINT, limit_s), (signal.SIGTERM, GRACE_S), (signal.SIGKILL, 10.0))
    for number, seconds in steps:
        try:
            return process.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
    return process.wait()


def timing(folder: Path) -> list[str]:
    """Seconds of start-up, apart from those of measuring."""
    samples = list(read_samples(folder / "samples"))
    starts = [s.metrics["startup_s"] for s in samples if "startup_s" in s.metrics]
    runs = [s.duration_s for s in samples if "startup_s" not in s.metrics]
    if not starts:
        return ["no server started"]
    return [
        f"{len(starts)} servers ready after {min(starts):.0f} to {max(starts):.0f} s, together; "
        f"{len(runs)} runs of {sum(runs):.0f} s in all"
    ]


def checked(profiles: Collection[str], verdicts: Sequence[Verdict]) -> list[str]:
    """One line an expectation of these profiles: seen or not, and the verdict's own line."""
    lines = []
    for each in EXPECTED:
        if not each.applies(profiles):
            continue
        found = [v for v in verdicts if v.subject == each.subject and v.evidence.get("metric") == each.metric]
        seen = any(each.seen(v) for v in found)
        told = found[-1].line if found else "no verdict"
        lines.append(f"{'seen' if seen else 'NOT SEEN'} {each.text}: {told}"[:230])
    return lines


if __name__ == "__main__":
    sys.exit(main())
