"""Faults of a server that was ready: silence, deaths, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tokgate.errors import Exited, Hang, TokgateError
from tokgate.host import marker, ports
from tokgate.server import probe
from tokgate.server.launch import LaunchSpec, start
from tokgate.server.running import Server

SpecMaker = Callable[..., LaunchSpec]
Golden = Callable[[str, TokgateError], None]
GAP_S = 1.0


def client(server: Server, tokens: int = 40) -> None:
    """A client with a deadline on gaps, as the load generator is: raises what the server makes of it."""
    request = probe.FirstRequest(server.host, server.port, tokens)
    try:
        seen, since_s = -1, time.monotonic()
        with server.watch("decode of chat-bs1", on_death=request.close):
            while not request.state.finished:
                if request.state.chunks != seen:
                    seen, since_s = request.state.chunks, time.monotonic()
                if time.monotonic() - since_s > GAP_S:
                    raise server.hang("decode of chat-bs1", time.monotonic() - since_s, GAP_S)
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
def test_silence_is_a_hang(emulated_spec: SpecMaker, golden: Golden, fault: str) -> None:
    with start(emulated_spec(fault)) as server, pytest.raises(Hang) as caught:
        client(server)
    assert caught.value.waited_s < 1.5 * GAP_S
    assert server.stopped and marker.find(server.launch) == []
    golden(f"serving-{fault}", caught.value)


@pytest.mark.parametrize("fault", ["detokenizer-exit", "abort:20"])
def test_a_death_is_noticed_at_once(emulated_spec: SpecMaker, golden: Golden, fault: str) -> None:
    with start(emulated_spec(fault)) as server:
        with pytest.raises(Exited) as caught:
            client(server)
        # Who comes later is told the same.
        with pytest.raises(Exited):
            server.ensure_alive()
    assert marker.find(server.launch) == []
    golden(f"serving-{fault.split(':')[0]}", caught.value)


def test_ignored_term_is_a_hang_in_teardown(fake_spec: SpecMaker, golden: Golden) -> None:
    spec = fake_spec({"teardown_s": 1.0}, term="ignore")
    server = start(spec)
    teardown = server.stop()
    assert teardown.forced
    assert teardown.hang is not None and teardown.hang.waited_s < 1.5
    assert marker.find(server.launch) == [] and ports.is_free(spec.port)
    assert server.stop() is teardown
    golden("teardown-hang", teardown.hang)


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
