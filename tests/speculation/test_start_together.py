"""Servers started together: at the same time, as many as asked, and nothing measured while any of them starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gate.runs import gate
from tokgate.config.profiles import Profile
from tokgate.errors import EngineFault
from tokgate.gate.campaign import Campaign
from tokgate.gate.visit import Planned
from tokgate.verdict import Kind

WAIT_S = 20.0


@dataclass
class Host:
    """Counts what is up and what goes on."""

    together: int
    log: Path
    broken: str = ""
    events: list[str] = field(default_factory=list)
    starting: int = 0
    up: int = 0
    most_up: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    barrier: threading.Barrier | None = None

    def start(self, profile: Profile) -> Any:
        if self.barrier is not None:
            # Passed only when so many starts are under way at the same time.
            self.barrier.wait(WAIT_S)
        if profile.name == self.broken:
            raise EngineFault("it died")
        with self.lock:
            self.up += 1
            self.most_up = max(self.most_up, self.up)
            self.events.append(f"up {profile.name}")
        return SimpleNamespace(
            launch=profile.name, log_path=self.log, model_info={}, stop=lambda: self.stop(profile)
        )

    def stop(self, profile: Profile) -> str:
        with self.lock:
            self.up -= 1
            self.events.append(f"down {profile.name}")
        return profile.name

    def measurer(self) -> Any:
        def workload(server: Any, profile: Profile, workload: Any) -> str:
            with self.lock:
                self.events.append(f"measured {profile.name}")
            return profile.name

        return SimpleNamespace(
            check=lambda: None,
            cancel=lambda: None,
            startup=lambda server, profile: SimpleNamespace(),
            workload=workload,
        )


@pytest.fixture
def campaign(tmp_path: Path) -> Callable[..., tuple[Host, Campaign]]:
    def make(names: str, together: int, **how: Any) -> tuple[Host, Campaign]:
        log = tmp_path / "server.log"
        log.write_text("")
        host = Host(together, log, **how)
        plan = [Planned(Profile(name=name), (SimpleNamespace(name="chat"),)) for name in names]  # type: ignore[arg-type]
        return host, Campaign(plan, host.start, host.measurer(), side_by_side=False, together=together)

    return make


def test_three_start_at_once_and_are_measured_one_by_one(
    campaign: Callable[..., tuple[Host, Campaign]],
) -> None:
    host, runs = campaign("abc", 3, barrier=threading.Barrier(3))
    for name in "abc":
        runs.visit(name).measure_planned()
    assert sorted(host.events[:3]) == ["up a", "up b", "up c"]
    assert host.events[3:] == ["measured a", "measured b", "measured c"]
    runs.close()
    assert host.up == 0


def test_the_next_group_takes_the_place_of_the_first(campaign: Callable[..., tuple[Host, Campaign]]) -> None:
    host, runs = campaign("abcd", 2)
    for name in "abcd":
        runs.visit(name)
    runs.visit("d").measure_planned()
    assert host.most_up == 2
    assert sorted(host.events[:2]) == ["up a", "up b"]
    assert host.events[2:4] == ["measured a", "measured b"]
    assert sorted(host.events[4:8]) == ["down a", "down b", "up c", "up d"]
    runs.close()


def test_one_that_dies_leaves_the_others_alone(campaign: Callable[..., tuple[Host, Campaign]]) -> None:
    host, runs = campaign("abc", 3, broken="b")
    assert runs.visit("a").measured(SimpleNamespace(name="chat")) == "a"  # type: ignore[arg-type]
    with pytest.raises(EngineFault, match="it died"):
        runs.visit("b").server()
    assert runs.visit("c").measured(SimpleNamespace(name="chat")) == "c"  # type: ignore[arg-type]
    # It is not started a second time.
    assert host.events.count("up a") == 1
    assert host.up == 2
    runs.close()


def test_alone_nothing_starts_before_it_is_asked_for(campaign: Callable[..., tuple[Host, Campaign]]) -> None:
    host, runs = campaign("abc", 1)
    runs.visit("a").measure_planned()
    assert host.events == ["up a", "measured a"]
    runs.close()


def test_start_up_times_of_servers_started_together_are_kept_apart(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        "--engine=emulated:steady",
        "--profiles=baseline,baseline-eager",
        "--workloads=chat-bs1",
        "--runs=1",
        "--start-together=2",
        "-k=test_startup_time and startup_s or throughput",
    )
    assert {path.name for path in (run.folder / "samples/baseline").iterdir()} == {
        "startup-together",
        "chat-bs1",
    }
    assert run.one("startup-together[baseline]", "startup_s").kind is Kind.MISSING
