"""The noise study names a cause that is planted, and none where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.noise import findings
from benchmarks.noise import report as noise_report
from benchmarks.noise import stored as noise_stored
from benchmarks.noise.__main__ import KEPT
from benchmarks.noise.canary import PLACES, Memory, busy
from benchmarks.noise.conditions import CONDITIONS, Cores
from benchmarks.noise.counters import counters, difference
from benchmarks.noise.features import OWN_WORK, at_the_moment, cpu_speed, episodes, read_runs, spearman
from benchmarks.noise.study import Sampler
from tokgate.host.cpu_speed import arithmetic, on_cpu

ROOT = Path(__file__).parents[2]


def write(folder: Path, *, planted: str, runs: int = 36) -> list:
    """Runs of which every third is slow by 30 %; with ``planted`` the canary or steal goes with it."""
    rng = np.random.default_rng(4)
    with (folder / "runs-1b.jsonl").open("w") as file:
        for number in range(runs):
            slow = 1.3 if number % 3 == 0 else 1.0
            step = 1.4e-3 * slow
            gaps = step * rng.lognormal(0, 0.02, 600)
            if planted == "stall" and slow > 1:
                gaps = 1.4e-3 * rng.lognormal(0, 0.02, 600)
                gaps[::60] += 0.02
            t = np.concatenate([[0.03], 0.03 + np.cumsum(gaps)])
            canary = 0.4 * (slow if planted == "canary" else 1.0)
            stolen, used = 0.2 * (planted == "steal" and slow > 1), 1.2 * float(t[-1])
            looks = [
                {
                    "t_s": 100 * number + x,
                    "own_cpu_ms": canary * (1 + 0.01 * rng.random()),
                    "canary_cpu_ms": 0.1 * (1 + 0.01 * rng.random()),
                    "main_on_cpu": 3,
                }
                for x in np.arange(0, 1, 0.1)
            ]
            row = {
                "condition": CONDITIONS[number % 2],
                "run": number,
                "at_s": 100.0 * number,
                "duration_s": float(t[-1]),
                "interval_s": float(t[-1]),
                "metrics": {"decode_tok_s": 600 / float(t[-1] - t[0])},
                "lag_p99_ms": 0.1,
                "client_run_delay_s": 0.0,
                "moved": {
                    "cpu_steal_s": stolen,
                    "cpu_used_s": used,
                    "cpu_softirq_s": 0.0,
                    "main_run_delay_s": 0.0,
                },
                "samples": looks,
                "t_us": [round(1e6 * x) for x in t],
                "owner": [0] * len(t),
            }
            file.write(json.dumps(row) + "\n")
        file.write('{"condition": "cut sho')
    (folder / "study.json").write_text(json.dumps({"models": {"1b": {"left_out": {}, "perf_refused": {}}}}))
    return read_runs(folder / "runs-1b.jsonl")


@pytest.mark.parametrize(
    ("planted", "cause"),
    [
        ("canary", "fixed work on the scheduler's CPU took 5 % longer"),
        ("steal", "steal over 2 % of the CPU time wanted"),
    ],
)
def test_a_planted_cause_is_named_for_every_slow_run_and_for_no_other(tmp_path, planted, cause):
    *rows, whole = findings.causes(write(tmp_path, planted=planted))
    assert (whole.slow, whole.quick) == ((12, 12), (0, 24))
    (named,) = (c for c in rows if c.words == cause)
    assert (named.slow, named.quick) == ((12, 12), (0, 24))


def test_without_a_cause_none_is_named(tmp_path):
    runs = write(tmp_path, planted="nothing")
    assert findings.causes(runs)[-1].slow == (0, 12)
    assert max(abs(row[2]) for row in findings.correlations(runs)) < 0.6


def test_slow_in_every_step_and_stalls_are_told_apart(tmp_path):
    throughout = write(tmp_path, planted="nothing")
    assert throughout[0].level_ms == pytest.approx(1.82, rel=0.02) and throughout[0].lost < 0.01
    stalled = write(tmp_path, planted="stall")
    assert stalled[0].level_ms == pytest.approx(1.4, rel=0.02) and stalled[0].lost > 0.1


def test_tables_and_plot_are_written_and_short(tmp_path):
    write(tmp_path, planted="canary")
    docs = tmp_path / "docs"
    docs.mkdir()
    page = docs / "noise.md"
    page.write_text("head\n<!-- benchmarks.noise: begin -->\nold\n<!-- benchmarks.noise: end -->\ntail\n")
    noise_report.write([tmp_path], docs)
    text = page.read_text()
    assert text.startswith("head") and text.endswith("tail\n") and "old" not in text
    assert OWN_WORK in text and (docs / "noise.png").stat().st_size > 1000
    assert len(noise_report.table(tmp_path).splitlines()) <= 25


def test_what_happens_at_the_same_moment_is_seen_within_runs(tmp_path):
    runs = write(tmp_path, planted="nothing")
    assert at_the_moment(runs, "own_cpu_ms") == pytest.approx(0, abs=0.35)
    assert at_the_moment(runs, "sm_mhz") is None
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3], [5, 5, 5]) is None


def test_an_episode_is_told_whatever_was_measured_in_it():
    runs = findings.models(ROOT / "benchmarks/noise/h200")["1b"]
    found, share = episodes(runs)
    longest = max(found, key=lambda e: e.seconds)
    assert (
        longest.seconds == pytest.approx(13, abs=0.5) and longest.runs == 5 and len(longest.conditions) == 4
    )
    assert 0.2 < share < 0.3
    quiet = [run for run in runs if run.number < 5 or run.number >= 14]
    assert episodes(quiet) == ([], 0.0)
    by_order = dict(findings.orders(runs))
    assert by_order["ABBABAAB"] < by_order["AAAABBBB"] / 2


def test_the_page_holds_what_the_kept_study_gives(tmp_path):
    page = (ROOT / "docs/explanation/noise.md").read_text()
    (tmp_path / "noise.md").write_text(page)
    noise_report.write(KEPT, tmp_path)
    assert (tmp_path / "noise.md").read_text() == page, "python -m benchmarks.noise --analyse"


def test_a_kept_study_gives_what_the_whole_one_gives(tmp_path):
    whole, kept = tmp_path / "whole", tmp_path / "kept"
    whole.mkdir()
    write(whole, planted="canary")
    noise_report.keep(whole, kept)
    assert noise_report.table(kept) == noise_report.table(whole)
    assert not list(kept.glob("*.jsonl"))


def test_the_canary_names_the_slow_runs_of_a_model_that_the_cpu_bounds():
    """1.1 B: every slow run in which the canary was under the scheduler has it."""
    runs = findings.natural(findings.models(ROOT / "benchmarks/noise/h200-x2-1b")["1b"])
    (work,) = (c for c in findings.causes(runs) if c.words.startswith("fixed work on the scheduler's CPU"))
    assert work.slow == (7, 7) and work.quick == (2, 5)
    have = [r for r in runs if OWN_WORK in r.facts]
    assert spearman([r.tok_s for r in have], [r.facts[OWN_WORK] for r in have]) < -0.85


def test_a_model_that_the_gpu_bounds_does_not_scatter_with_the_cpu():
    """8 B: the scheduler's CPU was disturbed more than half of the time, and no run was slow."""
    runs = findings.models(ROOT / "benchmarks/noise/h200-x4-8b")["8b"]
    speed = cpu_speed(runs, "own_cpu_ms")
    assert speed.disturbed > 0.5 and speed.factor > 1.3
    assert findings.split(runs)[0] == []


def test_counters_see_a_busy_process():
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        before = counters([busy.pid], busy.pid)
        time.sleep(0.5)
        moved = difference(before, counters([busy.pid], busy.pid))
    finally:
        busy.kill()
        busy.wait()
    assert moved["main_cpu_s"] + moved["main_run_delay_s"] > 0.3
    assert moved["cpu_used_s"] > 0


def test_a_neighbour_on_the_same_cpu_makes_the_canary_wait_and_not_work_longer():
    """CPU time is the canary's figure: what another thread takes of the CPU shows in the wall time alone."""
    cpu, home = min(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    with on_cpu(cpu, home), busy(cpu):
        looks = [arithmetic() for _ in range(200)]
    # The quickest of three seldom waits; of two hundred some do.
    assert sum(wall for _, wall in looks) >= sum(cpu for cpu, _ in looks)
    assert os.sched_getaffinity(0) == home


def test_memory_reads_come_from_all_over_the_buffer_and_never_twice_in_a_row():
    memory = Memory()
    first = memory.read()
    assert first > 0
    places = [memory._order[i : i + PLACES] for i in range(0, 10 * PLACES, PLACES)]
    together = np.concatenate(places)
    assert len(set(together)) == len(together)
    assert together.max() - together.min() > 0.9 * len(memory._buffer)


def looks(sampler, count, began_s=0.0):
    """So many looks that began at a moment or later, however long a busy machine takes for them."""
    found, until = [], time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < until, found
        time.sleep(0.02)
        found += sampler.since(began_s)
    return found


def test_the_sampler_looks_at_the_schedulers_cpu_and_can_be_told_not_to(tmp_path):
    """A stand-in for the scheduler, pinned: its CPU is named, and the canary runs there unless it is told."""
    cpu = max(os.sched_getaffinity(0))
    loop = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    main = subprocess.Popen([sys.executable, "-S", "-c", loop], stdout=subprocess.PIPE)
    try:
        main.stdout.readline()
        with Sampler(tmp_path / "looks.jsonl", main.pid, -1, {}) as sampler:
            there = looks(sampler, 6)
            with sampler.elsewhere():
                # A look that is under way when it is told may still be there.
                elsewhere = looks(sampler, 4, began_s=time.monotonic())
    finally:
        main.kill()
        main.communicate()
    assert {look["main_on_cpu"] for look in there} == {cpu}
    assert any("own_cpu_ms" in look and "own_memory_ms" in look for look in there)
    assert not any("own_cpu_ms" in look for look in elsewhere)
    assert all(look["own_busy"] is None or look["own_busy"] >= 50 for look in there[2:])


def test_cores_are_groups_of_the_cpus_that_there_are():
    cores = Cores()
    assert set().union(*cores.cores) == os.sched_getaffinity(0)
    assert not cores.main & cores.others if cores.enough else True


def test_the_stored_campaign_is_slow_in_every_step():
    samples = ROOT / "tests/assets/h200/20261129-143440-583a/samples"
    text = "\n".join(noise_stored.table(samples))
    page = (ROOT / "docs/explanation/noise.md").read_text()
    assert text in page, "python -m benchmarks.noise --stored ... makes the page's tables"


@pytest.mark.slow
def test_the_study_runs_on_the_emulator(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.noise", "--out", str(tmp_path), "--budget-s", "50", "--enough", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tok/s goes with" in done.stdout or "1b:" in done.stdout
