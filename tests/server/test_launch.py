"""Start-up of servers, phase by phase: the control, and a hang planted in each phase."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.server.launches import Golden, Lateness, SpecMaker
from tokgate.errors import EngineFault, Hang
from tokgate.host import marker, ports
from tokgate.server.launch import start


def test_a_healthy_server_is_ready_and_ends(fake_spec: SpecMaker) -> None:
    spec = fake_spec()
    entered: list[str] = []
    with start(spec, entered.append) as server:
        names = [phase.name for phase in server.phases]
        assert names == [
            "spawn",
            "imports",
            "weights",
            "kv_cache",
            "capture:target-decode",
            "setup",
            "warmup",
            "first_token",
        ]
        assert entered == names
        assert [(c.kind, c.rank, c.seconds, c.gb, c.available_gb) for c in server.captures] == [
            ("target-decode", "", 4.54, 0.04, 83.23)
        ]
        assert server.version == "0.5.15.post1"
        assert server.url == f"http://127.0.0.1:{spec.port}"
        assert server.rss_mib() > 5
        assert any("scheduler" in name for name in server.environments)
        assert all(values["NCCL_PROTO"] == "LL" for values in server.environments.values())
        server.ensure_alive()
    teardown = server.stop()
    assert not teardown.forced and not teardown.killed and not teardown.holders and teardown.hang is None
    assert teardown.gpu_mib_back is None
    assert marker.find(server.launch) == []
    assert ports.is_free(spec.port)


def test_an_emulated_server_of_four_ranks(emulated_spec: SpecMaker) -> None:
    with start(emulated_spec(tp=4)) as server:
        ranks = {c.rank for c in server.captures if c.kind == "target-verify"}
        assert ranks == {"TP0", "TP1", "TP2", "TP3"}
        assert all(c.seconds is not None for c in server.captures)
        assert server.server_info and server.model_info
        assert server.resolved() == []
        assert sum("scheduler_TP" in name for name in server.environments) == 4


def test_the_gate_adds_under_a_second(fake_spec: SpecMaker, lateness: Lateness) -> None:
    began = time.monotonic()
    with start(fake_spec()) as server:
        took_s = time.monotonic() - began
        spoke_s = server.phases[0].seconds
    assert took_s - spoke_s - lateness.worst_s < 1.0


@pytest.mark.parametrize(
    ("moment", "how", "phase", "words"),
    [
        ("weights", "hang", "weights", "weight loading"),
        ("capture", "spin", "capture:target-decode", "target-decode graph capture"),
        ("warmup", "stop", "warmup", "warm-up"),
        ("stream", "hang", "first_token", "first generation"),
    ],
)
def test_a_phase_that_stands_still_is_a_hang(
    fake_spec: SpecMaker, lateness: Lateness, moment: str, how: str, phase: str, words: str
) -> None:
    spec = fake_spec(**{moment: how})
    with pytest.raises(Hang) as caught:
        start(spec)
    error = caught.value
    assert error.phase == phase
    assert error.headline.startswith(f"{words}: no progress for ")
    lateness.assert_in_time(error)
    assert [path.suffix for path in error.files] == [".txt", ".log"]
    evidence = error.files[0].read_text()
    for heading in ("== processes", "== GPUs", "== last log lines", "== stack of", "schedstat:", "wchan:"):
        assert heading in evidence
    assert ports.is_free(spec.port)


def test_a_phase_may_take_as_long_as_it_usually_does(fake_spec: SpecMaker) -> None:
    spec = fake_spec({"usual_s": {"weights": 10.0}, "usual_time_factor": 3.0})
    assert spec.limit_s("weights") == 30
    assert spec.limit_s("kv_cache") == spec.deadlines.kv_cache_s
    assert spec.limit_s("draft_weights") == spec.deadlines.weights_s


def test_slow_but_steady_is_no_hang(fake_spec: SpecMaker) -> None:
    floors = fake_spec().deadlines.model_copy(update={"weights_s": 1.0})
    with start(fake_spec({"deadlines": floors}, weights="trickle")) as server:
        phases = {phase.name: phase.seconds for phase in server.phases}
    assert phases["weights"] > 1.8


def test_tools_that_an_engine_ends_itself_are_no_deaths(fake_spec: SpecMaker) -> None:
    """A spawned compile pool that was terminated, and a failed tool, neither collected."""
    with start(fake_spec(weights="tools")) as server:
        server.ensure_alive()


def test_an_earlier_log_is_not_taken_for_this_launch(fake_spec: SpecMaker) -> None:
    spec = fake_spec(capture="hang")
    spec.log_path.parent.mkdir()
    spec.log_path.write_text("[2026-11-29 12:25:20] The server is fired up and ready to roll!\n")
    with pytest.raises(Hang, match="target-decode graph capture"):
        start(spec)
    assert spec.log_path.with_name(f"{spec.log_path.name}.1").read_text().endswith("ready to roll!\n")


def test_ready_line_of_an_unknown_version(fake_spec: SpecMaker) -> None:
    with start(fake_spec(ready="0")) as server:
        assert server.phases[-1].name == "warmup"


def test_too_few_tokens_is_not_ready(fake_spec: SpecMaker, golden: Golden) -> None:
    with pytest.raises(EngineFault) as caught:
        start(fake_spec(answer="short"))
    golden("first-generation-short", caught.value)


def test_an_error_answer_is_not_ready(fake_spec: SpecMaker, golden: Golden) -> None:
    with pytest.raises(EngineFault) as caught:
        start(fake_spec(answer="500"))
    golden("first-generation-http-500", caught.value)


def test_hang_in_capture_names_the_rank_and_its_stack(emulated_spec: SpecMaker, golden: Golden) -> None:
    spec = emulated_spec(
        "capture-hang:draft-extend@TP3", tp=4, usual_s={"capture:draft-extend": 0.25}, usual_time_factor=4.0
    )
    with pytest.raises(Hang) as caught:
        start(spec)
    error = caught.value
    assert any("scheduler_TP3" in line and "forever" in line for line in error.details)
    assert error.usual_s == 0.25
    golden("capture-hang", error)


def test_evidence_of_eight_ranks_within_ten_seconds(emulated_spec: SpecMaker) -> None:
    with pytest.raises(Hang) as caught:
        start(emulated_spec("capture-hang:target-verify@TP5", tp=8))
    evidence = caught.value.files[0].read_text()
    assert evidence.count("== stack of ") == 10
    took = re.search(r"^collected in ([\d.]+) s$", evidence, re.MULTILINE)
    assert took is not None and float(took[1]) < 10
    assert any("scheduler_TP5" in line and "forever" in line for line in caught.value.details)


def test_generation_dead_though_health_says_200(emulated_spec: SpecMaker, golden: Golden) -> None:
    with pytest.raises(Hang) as caught:
        start(emulated_spec("generation-dead"))
    golden("generation-dead", caught.value)


def test_interrupt_leaves_nothing(fake_spec: SpecMaker, tmp_path: Path) -> None:
    spec = fake_spec(weights="hang")

    def interrupt(phase: str) -> None:
        if phase == "weights":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(spec, interrupt)
    assert ports.is_free(spec.port)
