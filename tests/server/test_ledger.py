"""GPU memory of a launch, alone on its GPU and beside others, from a fake NVML."""

from __future__ import annotations

from typing import Any

import pytest

from tests.host.fake_nvml import NVMLError, nvml_of
from tokgate.host import gpu
from tokgate.server.ledger import GpuLedger, given_back_mib
from tokgate.server.progress import Progress
from tokgate.server.teardown import Teardown

OURS, OTHER = 11, 99
Processes = list[tuple[int, int | None]] | None


class Card:
    """One GPU whose use the test changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.set(600, [])

    def set(self, used_mib: int, processes: Processes) -> None:
        card: dict[str, Any] = {"used_mib": used_mib, "processes": processes}
        self._monkeypatch.setattr(gpu, "open_nvml", lambda: nvml_of(card))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Card(monkeypatch)


def test_alone_on_a_gpu_all_that_was_added_is_ours(card: Card) -> None:
    ledger = GpuLedger.open("gpu", {}, 1)
    card.set(8600, [(OURS, 8000)])
    before = ledger.held([OURS])
    assert before is not None and before.own_mib == {0: 8000} and not before.shared
    # Memory that no process holds any more, and that did not come back all the same.
    card.set(1100, [])
    after = ledger.held([OURS])
    assert ledger.left_mib(after) == {0: 500}
    assert given_back_mib(before, after) == {0: 8000}
    card.set(600, [])
    assert ledger.left_mib(ledger.held([OURS])) == {0: 0}


def test_beside_another_server_its_growth_is_neither_ours_nor_left_by_us(card: Card) -> None:
    ledger = GpuLedger.open("gpu", {}, 1)
    card.set(8600, [(OURS, 3000), (OTHER, 5000)])
    before = ledger.held([OURS])
    card.set(18600, [(OTHER, 18000)])
    after = ledger.held([OURS])
    assert ledger.left_mib(after) == {0: 0}
    assert given_back_mib(before, after) == {0: 3000}
    # The control: what one of ours still holds is said.
    card.set(20600, [(OURS, 2000), (OTHER, 18000)])
    assert ledger.left_mib(ledger.held([OURS])) == {0: 2000}


@pytest.mark.parametrize("processes", [None, [(4_000_001, 8000)]])
def test_where_nvml_names_none_of_ours_the_whole_gpu_counts(card: Card, processes: Processes) -> None:
    """No list at all, or one of the host's pids as seen from a container."""
    ledger = GpuLedger.open("gpu", {}, 1)
    card.set(8600, processes)
    held = ledger.held([OURS])
    assert held is not None and held.own_mib is None
    assert ledger.left_mib(held) == {0: 8000}


def test_where_nvml_does_not_say_how_much_a_process_holds_it_is_not_none(card: Card) -> None:
    """As under MIG, or without the permission: 0 MiB of ours would be a figure."""
    ledger = GpuLedger.open("gpu", {}, 1)
    card.set(8600, [(OURS, None), (OTHER, None)])
    before = ledger.held([OURS])
    assert before is not None and before.own_mib is None
    assert ledger.left_mib(before) == {0: 8000}
    card.set(600, [])
    assert given_back_mib(before, ledger.held([OURS])) == {0: 8000}


@pytest.mark.parametrize(
    "processes", [None, [(4_000_001, 8000), (4_000_002, 8000)], [(OURS, None), (OTHER, None)]]
)
def test_beside_another_launch_of_ours_memory_without_an_owner_is_nobodys(
    card: Card, processes: Processes
) -> None:
    """Of two servers that start together neither is told the memory of both, nor waits for the other's to come back."""
    first, second = GpuLedger.open("gpu", {}, 1), GpuLedger.open("gpu", {}, 1)
    first.begin()
    second.begin()
    card.set(16600, processes)
    held = first.held([OURS])
    assert held is not None and held.gauge is None
    assert ledger_tells(first) is None and ledger_tells(second) is None
    assert given_back_mib(held, first.held([OURS])) is None
    # The control: one that is launched when both have ended is alone again.
    first.end()
    second.end()
    card.set(600, [])
    third = GpuLedger.open("gpu", {}, 1)
    third.begin()
    card.set(8600, processes)
    assert ledger_tells(third) == {0: 8000}
    third.end()


def test_beside_another_launch_of_ours_what_nvml_names_is_ours(card: Card) -> None:
    first, second = GpuLedger.open("gpu", {}, 1), GpuLedger.open("gpu", {}, 1)
    first.begin()
    second.begin()
    card.set(12600, [(OURS, 8000), (OTHER, 4000)])
    assert ledger_tells(first) == {0: 8000}
    # The other one is gone, and took memory that was there before: what is in use tells nothing.
    second.end()
    card.set(8300, [(OURS, 8000)])
    assert ledger_tells(first) == {0: 8000}
    first.end()


def test_launches_on_other_gpus_do_not_crowd_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    used = {"used_mib": 600, "processes": None}
    monkeypatch.setattr(gpu, "open_nvml", lambda: nvml_of(used, used))
    ledgers = [GpuLedger.open("gpu", {"CUDA_VISIBLE_DEVICES": index}, 1) for index in "01"]
    for ledger in ledgers:
        ledger.begin()
    assert [ledger_tells(ledger) for ledger in ledgers] == [{0: 0}, {1: 0}]


def ledger_tells(ledger: GpuLedger) -> dict[int, int] | None:
    return ledger.left_mib(ledger.held([OURS]))


def test_a_gpu_that_answers_no_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cards: list[dict[str, Any]] = [{}, {}]
    monkeypatch.setattr(gpu, "open_nvml", lambda: nvml_of(*cards))
    ledger = GpuLedger.open("gpu", {}, 2)
    assert ledger.lost(ledger.held([OURS])) == ()
    cards[1] = {"fault": NVMLError("GPU is lost")}
    held = ledger.held([OURS])
    assert ledger.lost(held) == (1,)
    assert ledger.left_mib(held) == {0: 0} and held is not None and held.own_mib is None
    ended = Teardown(0.1, True, (), {0: 0}, {0: 0}, (), gpus_lost=(1,))
    assert ended.told[0] == "GPU 1 answers no more, so the fault may be the host's: sudo dmesg | grep -i nvrm"


def test_memory_that_another_server_takes_is_no_progress_of_ours(card: Card) -> None:
    """The gauge changes as soon as NVML names one of ours, and counts from there."""
    ledger, progress = GpuLedger.open("gpu", {}, 1), Progress(0.0)

    def look(now_s: float) -> None:
        held = ledger.held([OURS])
        assert held is not None and held.gauge is not None
        progress.reading(*held.gauge, now_s)

    card.set(3600, [(OURS, 3000)])
    look(1.0)
    for second in range(2, 10):
        card.set(3600 + 1000 * second, [(OURS, 3000), (OTHER, 1000 * second)])
        look(float(second))
    assert progress.waited_s(10.0) == 10.0
    card.set(20_000, [(OURS, 3100), (OTHER, 9000)])
    look(11.0)
    assert progress.waited_s(11.0) == 0.0


def test_without_a_gpu_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GpuLedger.open("emulated", {}, 1).held([OURS]) is None
    monkeypatch.setattr(gpu, "open_nvml", lambda: "no NVIDIA driver answers: planted")
    ledger = GpuLedger.open("gpu", {}, 1)
    assert ledger.held([OURS]) is None and ledger.left_mib(None) is None
    assert given_back_mib(None, None) is None


def test_the_end_of_a_server_is_told_in_its_message() -> None:
    ended = Teardown(1.94, True, (), {0: 57334}, {0: 12}, ("GPU 0: pid 7 (x, 12 MiB)",))
    assert ended.told == (
        "ended in 1.9 s: GPU 0: 57334 MiB given back, 12 MiB still held",
        "not given back: GPU 0: pid 7 (x, 12 MiB)",
    )
    assert Teardown(0.2, True, (), None, None, ()).told == ()
    # One that had died had given all back before.
    assert Teardown(0.04, True, (), {0: 0}, {0: 0}, ()).told == ("ended in 0.0 s: GPU 0: 0 MiB still held",)
    assert Teardown(0.04, True, (), {0: 5}, None, ()).told == ("ended in 0.0 s: GPU 0: 5 MiB given back",)
