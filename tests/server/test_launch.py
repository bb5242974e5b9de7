"""Start-up, stop and death of servers, with the fake one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokgate.errors import Hang
from tokgate.host import marker, ports
from tokgate.server.launch import LaunchSpec, start

SpecMaker = Callable[..., LaunchSpec]


def test_a_healthy_server_is_ready_and_ends(fake_spec: SpecMaker) -> None:
    spec = fake_spec()
    entered: list[str] = []
    with start(spec, entered.append) as server:
        assert [phase.name for phase in server.phases] == [
            "spawn",
            "imports",
            "weights",
            "kv_cache",
            "capture:target-decode",
            "setup",
            "warmup",
            "first_token",
        ]
        assert [(c.kind, c.rank, c.seconds, c.available_gb) for c in server.captures] == [
            ("target-decode", "", 4.54, 83.23)
        ]
        assert server.version == "0.5.15.post1"
        assert server.rss_mib() > 5
        assert any("scheduler" in name for name in server.environments)
        assert all(values["NCCL_PROTO"] == "LL" for values in server.environments.values())
        server.ensure_alive()
    teardown = server.stop()
    assert not teardown.forced and not teardown.killed and not teardown.holders and teardown.hang is None
    assert marker.find(server.launch) == []
    assert ports.is_free(spec.port)


@pytest.mark.parametrize(
    ("moment", "phase", "words"),
    [
        ("spawn", "spawn", "spawn"),
        ("weights", "weights", "weight loading"),
        ("capture", "capture:target-decode", "target-decode graph capture"),
        ("warmup", "warmup", "warm-up"),
        ("generate", "first_token", "first generation"),
        ("stream", "first_token", "first generation"),
    ],
)
def test_a_phase_that_stands_still_is_a_hang(
    fake_spec: SpecMaker, moment: str, phase: str, words: str
) -> None:
    spec = fake_spec(**{moment: "spin" if moment == "capture" else "hang"})
    with pytest.raises(Hang) as caught:
        start(spec)
    error = caught.value
    assert error.phase == phase
    assert error.headline.startswith(f"{words}: no progress for ")
    assert error.limit_s <= error.waited_s < 1.5 * error.limit_s + 0.5
    assert all(path.is_file() for path in error.files)
    assert ports.is_free(spec.port)
