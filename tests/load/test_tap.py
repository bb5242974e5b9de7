"""The tap on the wire: dates from packets, right even for a client that got no CPU."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from tests.load.peers import HEAD, QUICK, chunk, event, workload
from tests.load.test_client import causes, held_up, wait_for
from tests.load.test_metrics import judged, recording, steady_stream
from tokgate.cli import run as cli
from tokgate.errors import HostFault
from tokgate.load import client, tap
from tokgate.load.audit import follow_share
from tokgate.load.client import measure
from tokgate.load.dating import Packets, ways
from tokgate.load.measurement import Measurement
from tokgate.load.prompts import build
from tokgate.load.tap import FROM_SERVER, OPENS

PRIVILEGED = pytest.mark.skipif(not tap.allowed(), reason="packet sockets need CAP_NET_RAW")


def packets(*rows: tuple[int, int, int, int, int]) -> Packets:
    """Rows of (local port, flags, sequence, length, stamp)."""
    columns = list(zip(*rows, strict=True))
    kinds = (np.uint16, np.uint8, np.uint32, np.uint32, np.int64)
    return Packets(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def test_a_byte_is_dated_by_the_packet_that_carries_it() -> None:
    seen = packets(
        (9, OPENS, 500, 0, 1),
        (9, OPENS | FROM_SERVER, 100, 0, 2),
        (9, 0, 501, 40, 3),  # the request
        (8, FROM_SERVER, 1, 999, 4),  # of a connection that was open before: nobody's
        (9, FROM_SERVER, 101, 10, 5),
        (9, FROM_SERVER, 111, 20, 6),
        (9, 0, 541, 30, 7),  # the next request
    )
    ((answer, question),) = ways(seen, [9])
    assert list(answer.complete_ns(np.array([1, 10, 11, 30, 31]))) == [5, 5, 6, 6, 0]
    assert list(question.begun_ns(np.array([0, 39, 40, 70]))) == [3, 3, 7, 0]


def test_numbers_that_wrap_and_segments_that_come_twice_or_late() -> None:
    start = 2**32 - 16
    seen = packets(
        (9, OPENS | FROM_SERVER, start - 1, 0, 1),
        (9, FROM_SERVER, start, 10, 2),
        (9, FROM_SERVER, (start + 20) % 2**32, 10, 3),  # overtook the one before it
        (9, FROM_SERVER, (start + 10) % 2**32, 10, 4),
        (9, FROM_SERVER, start, 10, 5),  # sent again
        (9, FROM_SERVER, (start + 30) % 2**32, 10, 6),
    )
    ((answer, _),) = ways(seen, [9])
    # The overtaking segment is of use only when the gap before it is filled.
    assert list(answer.complete_ns(np.array([10, 20, 30, 40]))) == [2, 4, 4, 6]


def test_a_port_that_comes_again_is_another_connection() -> None:
    seen = packets(
        (9, OPENS | FROM_SERVER, 100, 0, 1),
        (9, FROM_SERVER, 101, 10, 2),
        (9, OPENS | FROM_SERVER, 7000, 0, 3),
        (9, OPENS | FROM_SERVER, 7000, 0, 4),
        (9, FROM_SERVER, 7001, 10, 5),
    )
    dates = [answer.complete_ns(np.array([10]))[0] for answer, _ in ways(seen, [9, 4, 9, 9])]
    assert dates == [2, 0, 5, 0]


def measured(url: str, **plan: object) -> Measurement:
    load = workload(**plan)
    return measure(url, load, build(load), deadlines=QUICK, stamps="tap")


@PRIVILEGED
def test_every_event_is_seen_over_kept_alive_connections(truth) -> None:
    with truth("--step-us", "2000", "--spec") as url:
        found = measured(url, requests=6, concurrency=2, output_tokens=30)
    assert found.audit.stamp_tier == "tap" and found.audit.unstamped_share == 0
    assert not causes(found) - {"slow_to_follow"}
    lags = found.timeline.lag_s
    assert len(lags) and (lags > -1e-4).all()  # nothing is read before it came
    for request in found.requests:
        assert request.intended_s == request.sent_s < request.first_token_s < request.last_token_s


@PRIVILEGED
def test_the_tap_is_right_while_the_client_stands_still(scripted) -> None:
    """The worker is stopped for half a second in a steady stream: a kernel stamp a read cannot say when what came."""
    longest_s, void = {}, {}
    for stamps in ("tap", "kernel"):
        parts, sent = held_up()
        load = workload(output_tokens=100)
        server = scripted(lambda _, parts=parts: parts)
        found = measure(server.url, load, build(load), deadlines=QUICK, stamps=stamps)
        assert [r.steps for r in found.requests] == [100]
        longest_s[stamps] = float(np.diff(found.timeline.t_s).max())
        void[stamps] = {reason.cause for reason in found.void}
        # From before one event to after the next: what a server that is held up itself really left between them.
        longest_s[f"server, {stamps}"] = max(b - a for a, b in zip(sent[::2], sent[3::2], strict=False))
    assert longest_s["kernel"] > 0.3 and {"client_lag", "merged_reads"} & void["kernel"]
    assert longest_s["tap"] <= longest_s["server, tap"] + 0.001
    assert not {"client_lag", "merged_reads"} & void["tap"]


@PRIVILEGED
def test_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this host")
    port_of = []

    def serve() -> None:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            port_of.append(listener.getsockname()[1])
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                last = chunk(event(3, {"type": "length"})) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
                for part in (HEAD, chunk(event(1)), chunk(event(2)), last):
                    peer.sendall(part)
                    time.sleep(0.005)

    thread = threading.Thread(target=serve)
    thread.start()
    wait_for(lambda: port_of)
    found = measured(f"http://[::1]:{port_of[0]}", output_tokens=3)
    thread.join()
    assert found.requests[0].outcome == "ok" and found.audit.unstamped_share == 0


def test_without_the_right_to_it_the_tap_is_refused(monkeypatch: pytest.MonkeyPatch, truth, capsys) -> None:
    monkeypatch.setattr(client, "allowed", lambda: False)
    with truth() as url:
        with pytest.raises(HostFault, match="CAP_NET_RAW"):
            measured(url)
        assert cli(["bench", url, "--quiet", "--stamps", "sundial"]) == 2
        assert "expected kernel or tap" in capsys.readouterr().err


GOOD = [steady_stream(0, 0.02, 0.01, [1] * 101)]


@pytest.mark.parametrize(
    ("changes", "void"),
    [
        ({"lag_s": 0.5, "run_delay_s": 9.0, "cpu_s": 9.9}, set()),
        ({"drops": 3}, {"tap_drops"}),
        ({"unread_bytes": 60_000}, {"closed_window"}),
        ({"clock_step_s": 2e-4}, {"clock_step"}),
    ],
)
def test_what_voids_a_tapped_run(changes: dict[str, object], void: set[str]) -> None:
    assert judged(recording(GOOD, **{"drops": 0, **changes})) == void


def test_a_client_that_is_late_to_send_the_next_request_changes_the_load() -> None:
    def streams(pause_s: float) -> list[tuple]:
        second_s = 1.02 + pause_s
        return [steady_stream(at, 0.02, 0.01, [1] * 101) for at in (0, 0, second_s, second_s)]

    prompt, late = recording(streams(0.001), drops=0), recording(streams(0.3), drops=0)
    assert follow_share(prompt.requests, 2) < 0.002
    assert follow_share(late.requests, 2) == pytest.approx(0.3 / 1.32, rel=0.01)
    assert judged(prompt, 2) == set() and judged(late, 2) == {"slow_to_follow"}
