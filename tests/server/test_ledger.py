"""GPU memory of a launch, alone on its GPU and beside others, from a fake NVML."""

from __future__ import annotations

from typing import Any

import pytest

from tests.host.fake_nvml import nvml_of
from tokgate.host import gpu
from tokgate.server.ledger import GpuLedger, given_back_mib
from tokgate.server.progress import Progress
from tokgate.server.teardown import Teardown

OURS, OTHER = 11, 99
Processes = list[tuple[int, int]] | None


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


def test_memory_that_another_server_takes_is_no_progress_of_ours(card: Card) -> None:
    """The gauge changes as soon as NVML names one of ours, and counts from there."""
    ledger, progress = GpuLedger.open("gpu", {}, 1), Progress(0.0)

    def look(now_s: float) -> None:
        held = ledger.held([OURS])
        assert held is not None
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
