"""What a wrong pair or a wrong server looks like on real SGLang: each fault planted once, beside a control.

    python -m benchmarks.sensitivity --engine environments/cpu/engine.yaml --out results.jsonl [--write]

A `tiny` pair is served with EAGLE-3 by the CPU engine. Faults of weights and flags are put into a copy of
the pair, those of the cache and of positions into the running code (:mod:`benchmarks.sensitivity.planted_server`).
Results are added to ``--out``; faults that are there already are not run again (those of the table in the docs are in
benchmarks/sensitivity/results.jsonl). ``--write`` puts the table into
docs/explanation/synthetic_pair.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dial.fleet import Fleet
from benchmarks.page import put
from tokgate.analysis.parity_case import Case, CaseRequest
from tokgate.config.engine import Engine, resolve_engine
from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import Misconfigured, TokgateError
from tokgate.gate.greedy import GreedyClient
from tokgate.models import guard
from tokgate.models.checkup import prompt_of
from tokgate.models.maker import make
from tokgate.models.safetensors import read_folder
from tokgate.models.truth import Truth, load_truth, predicted_output, predicted_verify_count

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "explanation" / "synthetic_pair.md"
BEGIN, END = "<!-- sensitivity: begin -->", "<!-- sensitivity: end -->"
STEPS = 3
SERVER = ROOT / "benchmarks" / "sensitivity" / "planted_server.py"


def configure(part: str, **changes: Any) -> Callable[[Path], None]:
    """Change keys of a part's config.json."""

    def edit(pair: Path) -> None:
        path = pair / part / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def weights(part: str, name: str, change: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Path], None]:
    """Change a tensor in place."""

    def edit(pair: Path) -> None:
        entry = read_folder(pair / part)[name]
        kind = {"F32": "<f4", "I64": "<i8"}[entry.format]
        tensor = np.memmap(entry.path, kind, "r+", offset=entry.start, shape=entry.shape)
        tensor[:] = change(np.array(tensor))
        tensor.flush()

    return edit


def swap_blocks(fc: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The captured layers in another order: the first two blocks of columns change places."""
    width = fc.shape[1] // 3
    return np.concatenate([fc[:, width : 2 * width], fc[:, :width], fc[:, 2 * width :]], axis=1)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        words: for the table.
        edit: of the pair's copy.
        planted: of the running server, by name.
        algorithm: given to SGLang.
    """

    words: str
    edit: Callable[[Path], None] | None = None
    planted: str | None = None
    algorithm: str = "EAGLE3"


FAULTS = {
    "control": Fault("none (control)"),
    "layers": Fault(
        "other layers captured",
        configure("draft", eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}),
    ),
    "order": Fault("captured layers in another order", weights("draft", "fc.weight", swap_blocks)),
    "eagle": Fault("`fc` skipped, target's head (EAGLE for EAGLE3)", algorithm="EAGLE"),
    "map": Fault("vocabulary map off by one", weights("draft", "d2t", lambda d2t: d2t + 1)),
    "draft-rope": Fault("draft: rope theta 5 times too large", configure("draft", rope_theta=50000.0)),
    "target-rope": Fault("target: rope theta 5 times too large", configure("target", rope_theta=50000.0)),
    "target-rope-1": Fault("target: rope theta 1 % too large", configure("target", rope_theta=10100.0)),
    "lost-entries": Fault("every 7th cache entry of one layer lost", planted="lost-entries"),
    "mixed-requests": Fault("two requests' entries mixed up in verification", planted="mixed-requests"),
    "shifted-positions": Fault("positions one too far in verification", planted="shifted-positions"),
    "stale-prefix": Fault("every other entry of a cached prefix is another token's", planted="stale-prefix"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server with a fault answered.

    Attributes:
        guard: what the check before the launch said; empty when it let the pair through.
        at_once, in_turn: outputs that are the known ones, of how many: a batch; prompts with a shared prefix.
        accept_length, predicted: over all requests.
        exact: requests with the predicted verify count, of how many.
        fault: why nothing was answered.
    """

    name: str
    guard: str = ""
    at_once: tuple[int, int] = (0, 0)
    in_turn: tuple[int, int] = (0, 0)
    accept_length: float | None = None
    predicted: float = 0.0
    exact: tuple[int, int] = (0, 0)
    fault: str = ""


def questions(truth: Truth) -> tuple[Case, Case]:
    """A batch of mixed lengths, and prompts in turn that share more than every distance."""
    stream = prompt_of(truth.rule, 1200)
    starts = (0, 130, 260, 390)
    mixed = [stream[at : at + length] for at, length in zip(starts, (115, 104, 60, 20), strict=True)]
    shared = [[*stream[600:710], *stream[800 + 4 * i : 804 + 4 * i]] for i in range(4)]

    def case(prompts: list[list[int]], *, together: bool) -> Case:
        return Case(requests=[CaseRequest(prompt_ids=p, new_tokens=41) for p in prompts], together=together)

    return case(mixed, together=True), case(shared, together=False)


def look(name: str, fault: Fault, engine: Engine, whole: Path, folder: Path) -> Seen:
    """Serve the pair with the fault once."""
    pair = folder / name
    shutil.copytree(whole, pair)
    if fault.edit is not None:
        fault.edit(pair)
    refused = ""
    try:
        guard.check(pair / "target", pair / "draft", fault.algorithm)
    except Misconfigured as error:
        refused = error.details[0]
    env = {**engine.env, "TOKGATE_LAUNCHER": engine.launcher[0], "TOKGATE_PLANTED": fault.planted or ""}
    planted = replace(engine, launcher=(str(SERVER),), env=env)
    profile = Profile(
        name=name,
        cuda_graphs=False,
        max_running_requests=8,
        random_seed=0,
        speculation=Speculation(fault.algorithm, STEPS, 1, STEPS + 1),
    )
    truth = load_truth(whole)
    fleet = Fleet(planted, folder, time.monotonic() + 500, 1)
    try:
        with fleet.server(profile, pair) as server:
            client = GreedyClient(server.url, 300)
            answers = [(case, client.answer(case)) for case in questions(truth)]
    except TokgateError as error:
        return Seen(name, refused, fault=str(error).splitlines()[0])
    known, exact, tokens, passes, wanted = [], 0, 0, 0, 0
    for case, outputs in answers:
        right = [predicted_output(truth, r.prompt_ids, r.new_tokens) for r in case.requests]
        known.append((sum(list(o.ids) == ids for o, ids in zip(outputs, right, strict=True)), len(right)))
        for request, output in zip(case.requests, outputs, strict=True):
            count = predicted_verify_count(truth, request.prompt_ids, request.new_tokens, STEPS)
            exact += output.verify_count == count
            passes += output.verify_count or 0
            tokens += len(output.ids) - 1
            wanted += count
    total = sum(number for _, number in known)
    return Seen(
        name,
        refused,
        known[0],
        known[1],
        tokens / passes if passes else None,
        tokens / wanted,
        (exact, total),
    )


def table(seen: dict[str, Seen]) -> str:
    """The table in Markdown."""
    lines = [
        "| fault | known outputs: batch | shared prefix | accept length (predicted) | counts exact | told by |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, fault in FAULTS.items():
        if name not in seen:
            continue
        row = seen[name]
        if row.fault:
            lines.append(f"| {fault.words} | - | - | - | - | does not serve: {row.fault} |")
            continue
        told = ["the guard"] if row.guard else []
        if row.at_once[0] < row.at_once[1] or row.in_turn[0] < row.in_turn[1]:
            told.append("parity")
        if row.exact[0] < row.exact[1]:
            told.append("accept length")
        got = "-" if row.accept_length is None else f"{row.accept_length:.3f}"
        lines.append(
            f"| {fault.words} | {row.at_once[0]} of {row.at_once[1]} | {row.in_turn[0]} of {row.in_turn[1]} "
            f"| {got} ({row.predicted:.3f}) | {row.exact[0]} of {row.exact[1]} | {', '.join(told) or 'nothing'} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", required=True, help="engine.yaml of the CPU engine")
    parser.add_argument("--out", type=Path, required=True, help="results, one line a fault; added to")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    options = parser.parse_args()
    engine = resolve_engine(options.engine, ROOT / "environments")
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    seen = {row["name"]: Seen(**row) for row in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="tokgate-sensitivity-") as name:
        folder = Path(name)
        make("tiny", folder / "whole", accept_length=2.5, steps=STEPS)
        for fault in options.faults.split(","):
            if fault not in seen:
                seen[fault] = look(fault, FAULTS[fault], engine, folder / "whole", folder)
                print(seen[fault], flush=True)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(seen[fault])) + "\n")
    text = table(seen)
    print(text)
    if options.write:
        put(DOCUMENT, BEGIN, END, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
