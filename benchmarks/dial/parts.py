"""The parts of the dial's script; each adds its rows and lets no fault out."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.dial.bench import STEPS, Bench, Row, run_all
from benchmarks.dial.questions import Expected, Questions, ask_for, count_known, expect, judge
from tokgate.analysis.parity import Outcome, compare
from tokgate.config.profiles import AttentionMode
from tokgate.errors import Misconfigured, TokgateError
from tokgate.gate import parity, passes
from tokgate.gate.judge import ALL_REJECTED
from tokgate.models import guard
from tokgate.models.dial import Dial
from tokgate.models.maker import Recipe, make
from tokgate.models.rule import FIRST_GENERATED

NEAR_TIE = 8
"""Every eighth token of the near-tie pair is one, or more rarely where the vocabulary has too few spare ids."""


def baseline(bench: Bench, questions: Questions, expected: Future[Expected]) -> None:
    """Without speculation: the reference of parity, with its floor."""
    with (
        bench.row("baseline"),
        bench.fleet.server(bench.profile("baseline"), bench.pair(bench.first)) as server,
    ):
        cycle = bench.client(server).answer(questions.cycle)
        answers = parity.ask(bench.client(server), questions.many, as_reference=True)
        bench.reference = answers
        bench.answers["baseline"] = [*cycle, *answers.outputs]
        right = expected.result(bench.fleet.left_s)
        known = count_known(right, cycle[0], answers.outputs)
        control = compare(answers.outputs, answers.again, answers.floor)
        floor = "no floor" if answers.floor is None else f"floor {answers.floor.largest:.3g} nats"
        asked = len(answers.outputs) + 1
        bench.add(
            Row(
                "baseline",
                known == asked and control.verdict == "PASS",
                f"{known} of {asked} outputs known; against itself: {control.headline()}; {floor}",
                server.startup_s,
            )
        )


def name_of(length: float, graphs: bool, mode: AttentionMode) -> str:
    """Of a combination, for its row."""
    return f"{length:g} {'graphs' if graphs else 'eager'} {mode}"


def combination(
    bench: Bench,
    length: float,
    graphs: bool,
    mode: AttentionMode,
    questions: Questions,
    expected: Future[Expected],
) -> None:
    """One speculative server."""
    name = name_of(length, graphs, mode)
    with bench.row(name):
        profile = bench.profile(name.replace(" ", "-"), graphs=graphs, mode=mode)
        # Without graphs every pass is slow: fewer prompts.
        many = questions.many
        if not graphs:
            many = many.model_copy(update={"requests": many.requests[: bench.options.prompts_eager]})
        with bench.fleet.server(profile, bench.pair(length)) as server:
            before = passes.scrape(server)
            cycle = bench.client(server).answer(questions.cycle)
            outputs = bench.client(server).answer(many)
            counted = passes.of_run(passes.between(before, passes.scrape(server)))
            overrides = [str(each) for each in server.resolved()]
            startup_s = server.startup_s
        bench.answers[name] = [*cycle, *outputs]
        found = judge(length, expected.result(bench.fleet.left_s), cycle[0], outputs)
        faults = list(found.faults)
        replayed = "passes not counted"
        if counted is not None:
            replayed = f"{counted.decode_graph:.0f} replayed, {counted.decode_eager:.0f} eager"
            if bench.engine.kind == "gpu" and graphs != (counted.decode_graph > counted.decode_eager):
                faults.append(f"graphs {'on' if graphs else 'off'}, but {replayed}")
        off = "" if found.off_percent is None else f" ({found.off_percent:+.2f} %)"
        got = "-" if found.accept_length is None else f"{found.accept_length:.3f}"
        text = (
            f"accept {got}{off}; cycle {found.passes[0]}/{found.passes[1]} passes; prompts: {found.exact} exact, "
            f"{found.within} within 1 of {len(outputs)}; known {found.known}/{found.requests}; {replayed}"
        )
        bench.add(
            Row(
                name,
                not faults,
                "; ".join([*faults, text]),
                startup_s,
                {**asdict(found), "radix_cache": profile.radix_cache, "overrides": overrides},
            )
        )


def misuse(bench: Bench, questions: Questions) -> None:
    """EAGLE with an EAGLE-3 draft: refused before the launch; started all the same, it is told."""
    length = max(bench.options.accept_lengths)
    pair = bench.pair(length)
    with bench.row("EAGLE refused"):
        try:
            guard.check(pair / "target", pair / "draft", "EAGLE")
            bench.add(Row("EAGLE refused", False, "the guard lets it through"))
        except Misconfigured as error:
            bench.add(Row("EAGLE refused", True, f"{error.details[0]}"))
    with bench.row("EAGLE forced"):
        profile = bench.profile("eagle-forced", mode="prefill")
        assert profile.speculation is not None
        profile = replace(profile, speculation=replace(profile.speculation, algorithm="EAGLE"))
        case = questions.many.model_copy(update={"requests": questions.many.requests[:2]})
        try:
            with bench.fleet.server(profile, pair) as server:
                outputs = bench.client(server).answer(case)
        except TokgateError as error:
            bench.add(
                Row(
                    "EAGLE forced",
                    True,
                    f"does not serve: {str(error).splitlines()[0]}",
                    facts={"error": str(error)},
                )
            )
            return
        tokens = sum(len(output.ids) - 1 for output in outputs)
        count = sum(output.verify_count or 0 for output in outputs)
        accept = tokens / count if count else None
        told = accept is not None and accept < ALL_REJECTED
        text = f"serves; accept length {accept and round(accept, 3)}: " + (
            "every draft is rejected: the draft is not used" if told else "not told from a good draft"
        )
        bench.add(Row("EAGLE forced", told, text))


def tie(bench: Bench, questions: Questions) -> None:
    """A pair whose every n-th token is a near-tie: differences must be told as ties."""
    length = bench.options.accept_lengths[0]
    folder = bench.models / "near-tie"
    case = questions.many.model_copy(
        update={"requests": questions.many.requests[: bench.options.prompts_eager]}
    )
    answers: dict[str, parity.Answers] = {}
    with bench.row("near-tie"):
        produced = bench.preset.phases * bench.preset.values
        spare = bench.preset.vocab - FIRST_GENERATED - produced
        every = max(NEAR_TIE, produced // spare + 2)
        make(bench.preset.name, folder, accept_length=length, steps=STEPS, near_tie=every)

        def reference() -> None:
            with bench.fleet.server(bench.profile("near-tie-baseline"), folder) as server:
                answers["baseline"] = parity.ask(bench.client(server), case, as_reference=True)
                alone = case.model_copy(update={"together": False, "requests": case.requests[:8]})
                answers["one by one"] = parity.Answers(tuple(bench.client(server).answer(alone)), (), None)

        def other(graphs: bool) -> None:
            name = "graphs" if graphs else "eager"
            profile = bench.profile(f"near-tie-{name}", graphs=graphs, mode="prefill")
            with bench.fleet.server(profile, folder) as server:
                answers[name] = parity.Answers(tuple(bench.client(server).answer(case)), (), None)

        tasks = [reference, lambda: other(True)]
        if bench.engine.kind == "gpu":
            tasks.append(lambda: other(False))
        run_all(tasks)
        wanted = answers.pop("baseline")
        bad, texts, ties = 0, [], 0
        for name, got in answers.items():
            result = compare(wanted.outputs[: len(got.outputs)], got.outputs, wanted.floor)
            bad += len(result.failed) + result.count(Outcome.UNDECIDED)
            ties += result.count(Outcome.TIE)
            texts.append(f"{name}: {result.count(Outcome.EQUAL)} equal, {result.count(Outcome.TIE)} ties")
            texts += [each.line() for each in result.failed[:1]]
        floor = f"{wanted.floor.largest:.3g} nats" if wanted.floor else "none"
        bench.add(Row("near-tie", not bad, f"{'; '.join(texts)}; floor {floor}", facts={"ties": ties}))


def large_made(bench: Bench, folder: Path) -> None:
    """Make the 8b pair by the command line, alone on the machine."""
    with bench.row("8b made"):
        took = {
            name: command(
                bench, *f"model make 8b --accept-length 2.5 --backend {name} --out {folder}".split()
            )
            for name in bench.options.backends
        }
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**30
        text = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
        bench.add(
            Row("8b made", max(took.values()) < 60, f"{size:.1f} GiB: {text} (limit 60)", sum(took.values()))
        )


def large_verified(bench: Bench, folder: Path) -> None:
    with bench.row("8b verified"):
        took = command(bench, "model", "verify", str(folder))
        bench.add(Row("8b verified", True, "tokgate model verify: as truth.json says", took))


def large_served(bench: Bench, folder: Path) -> None:
    """Serve it once, with speculation."""
    with bench.row("8b served"):
        recipe = Recipe("8b", 0, Dial("accept_length", 2.5, STEPS), None)
        questions = ask_for(recipe, prompts=8, new_tokens=128, cycles=1)
        expected = expect(recipe, questions)
        profile = replace(bench.profile("8b", mode="prefill"), max_total_tokens=16384)
        with bench.fleet.server(profile, folder) as server:
            cycle = bench.client(server).answer(questions.cycle)
            many = bench.client(server).answer(questions.many)
            startup_s = server.startup_s
        # One cycle is too short for the dial's half percent: the count is what must hold.
        found = judge(2.5, expected, cycle[0], many)
        faults = [fault for fault in found.faults if "whole cycles, dial" not in fault]
        text = f"cycle {found.passes[0]}/{found.passes[1]} passes; {found.exact} of {len(many)} exact"
        text += f"; known {found.known}/{found.requests}"
        bench.add(Row("8b served", not faults, "; ".join([*faults, text]), startup_s))


def command(bench: Bench, *arguments: str) -> float:
    """Run tokgate; seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tokgate", *arguments],
        capture_output=True, text=True, timeout=bench.fleet.left_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"tokgate {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr[-300:]}"
        )
    return time.monotonic() - began
