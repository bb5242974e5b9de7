"""Faults of a server that was ready: silence, deaths, and how it ends."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tests.server.launches import Golden, Lateness, SpecMaker
from tokgate.errors import Exited, Hang
from tokgate.host import marker, ports, proc
from tokgate.server import probe
from tokgate.server.launch import start
from tokgate.server.running import Server

GAP_S = 1.0


def client(server: Server, tokens: int = 40, gap_s: float = GAP_S) -> None:
    """A client with a deadline on gaps, as the load generator is: raises what the server makes of it."""
    request = probe.FirstRequest(server.host, server.port, tokens)
    try:
        seen, since_s = -1, time.monotonic()
        with server.watch("decode of chat-bs1", on_death=request.close):
            while not request.state.finished:
                if request.state.chunks != seen:
                    seen, since_s = request.state.chunks, time.monotonic()
                if time.monotonic() - since_s > gap_s:
                    raise server.hang("decode of chat-bs1", time.monotonic() - since_s, gap_s)
                time.sleep(0.01)
            if request.state.fault:
                raise ConnectionError(request.state.fault)
    finally:
        request.close()


def test_control(emulated_spec: SpecMaker) -> None:
    with start(emulated_spec()) as server:
        client(server)
        client(server)
        assert not server.stopped


@pytest.mark.parametrize("fault", ["scheduler-stop", "stall"])
def test_silence_is_a_hang(emulated_spec: SpecMaker, golden: Golden, lateness: Lateness, fault: str) -> None:
    with start(emulated_spec(fault)) as server, pytest.raises(Hang) as caught:
        client(server)
    lateness.assert_in_time(caught.value)
    assert server.stopped and marker.find(server.launch) == []
    golden(f"serving-{fault}", caught.value)


@pytest.mark.parametrize("fault", ["detokenizer-exit", "abort:20"])
def test_a_death_is_noticed_at_once(emulated_spec: SpecMaker, golden: Golden, fault: str) -> None:
    with start(emulated_spec(fault)) as server:
        began = time.monotonic()
        with pytest.raises(Exited) as caught:
            # A deadline so long that it cannot be what ended the silence.
            client(server, gap_s=120)
        assert time.monotonic() - began < 60
        # Who comes later is told the same.
        with pytest.raises(Exited):
            server.ensure_alive()
    assert marker.find(server.launch) == []
    golden(f"serving-{fault.split(':')[0]}", caught.value)


def test_a_death_while_the_watch_begins_is_noticed(
    emulated_spec: SpecMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alive when asked, dead when its descriptor was to be opened: there is none that could tell."""
    told, in_time = threading.Event(), []
    with start(emulated_spec()) as server:
        descriptors = server._group.descriptors

        def late() -> list[int]:
            worker = next(p for p in server.processes() if "detokenizer" in proc.title(p))
            proc.send(worker, signal.SIGKILL)
            while proc.is_same(worker):
                time.sleep(0.01)
            return descriptors()

        monkeypatch.setattr(server._group, "descriptors", late)
        with pytest.raises(Exited, match="detokenizer"), server.watch("decode", on_death=told.set):
            # Not asserted in here: the death takes the place of any exception of the body.
            in_time.append(told.wait(15))
    assert in_time == [True]


def test_ignored_term_is_a_hang_in_teardown(fake_spec: SpecMaker, golden: Golden, lateness: Lateness) -> None:
    spec = fake_spec({"teardown_s": 1.0}, term="ignore")
    server = start(spec)
    teardown = server.stop()
    assert teardown.forced
    assert teardown.hang is not None
    lateness.assert_in_time(teardown.hang)
    assert marker.find(server.launch) == [] and ports.is_free(spec.port)
    assert server.stop() is teardown
    golden("teardown-hang", teardown.hang)


def test_an_emulated_engine_that_ignores_term(
    emulated_spec: SpecMaker, golden: Golden, lateness: Lateness
) -> None:
    server = start(emulated_spec("teardown-hang", teardown_s=1.0))
    teardown = server.stop()
    assert teardown.hang is not None and not teardown.holders
    lateness.assert_in_time(teardown.hang)
    assert marker.find(server.launch) == [] and ports.is_free(server.port)
    golden("emulated-teardown-hang", teardown.hang)


def test_processes_that_do_not_die_are_named_and_hold_nobody(
    fake_spec: SpecMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in uninterruptible sleep, where even KILL waits for a driver."""
    server = start(fake_spec(term="ignore"))
    with monkeypatch.context() as deaf:
        deaf.setattr("os.killpg", lambda group, number: None)
        deaf.setattr("tokgate.host.proc.send", lambda process, number: False)
        deaf.setattr("tokgate.server.group.ProcessGroup.close.__defaults__", (0.2,))
        deaf.setattr("tokgate.host.marker.kill.__defaults__", ((), 0.2))
        teardown = server.stop()
    assert sorted("does not die of KILL" in line for line in teardown.holders) == [True, True]
    assert any(f"pid {server.pid} (" in line for line in teardown.holders)
    marker.kill(server.launch)
    server._group.close()


def test_detached_survivor_is_hunted(fake_spec: SpecMaker) -> None:
    server = start(fake_spec(imports="detach"))
    teardown = server.stop()
    assert not teardown.forced
    assert len(teardown.killed) == 1 and teardown.killed[0].startswith("pid ")
    assert marker.find(server.launch) == []


@pytest.mark.parametrize("what", ["port", pytest.param("file", marks=pytest.mark.slow)])
def test_emulated_survivor_gives_the_port_back(emulated_spec: SpecMaker, what: str) -> None:
    spec = emulated_spec(f"survivor:{what}")
    server = start(spec)
    teardown = server.stop()
    assert len(teardown.killed) == 1 and not teardown.holders
    assert ports.is_free(spec.port)
