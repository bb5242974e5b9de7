"""The pool of servers, with servers that only count."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from tests.server.launches import SpecMaker
from tokgate.config.profiles import Profile
from tokgate.errors import Exited, Hang
from tokgate.server.launch import start
from tokgate.server.pool import Pool
from tokgate.server.running import Server


class Counter:
    """Starts servers that do nothing, and keeps the order of what happened."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def start(self, profile: Profile) -> Server:
        with self._lock:
            self.events.append(f"start {profile.name}")
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.02)
        if profile.name == "broken":
            with self._lock:
                self.running -= 1
            raise Exited("weight loading: exit code 1", profile=profile.name)
        return cast(Server, _Fake(profile.name, self))

    def stopped(self, name: str) -> None:
        with self._lock:
            self.events.append(f"stop {name}")
            self.running -= 1


class _Fake:
    def __init__(self, name: str, counter: Counter) -> None:
        self.launch = name
        self._counter = counter

    def stop(self) -> Any:
        self._counter.stopped(self.launch)
        return "teardown"


A, B, C, BROKEN = (Profile(name=name) for name in ("a", "b", "c", "broken"))


def test_starts_when_first_needed_and_shares() -> None:
    counter = Counter()
    with Pool(2, counter.start) as pool:
        assert counter.events == []
        first = pool.get(A)
        assert pool.get(A) is first and pool.get(B) is not first
        assert counter.events == ["start a", "start b"]
    assert sorted(counter.events[2:]) == ["stop a", "stop b"]
    assert pool.teardowns == {"a": "teardown", "b": "teardown"}


def test_stops_the_least_recently_used_before_when_full() -> None:
    counter = Counter()
    with Pool(2, counter.start) as pool:
        for profile in (A, B, A, C):
            pool.get(profile)
        assert counter.events == ["start a", "start b", "stop b", "start c"]
    assert counter.most == 2 and counter.running == 0


def test_failed_start_is_remembered() -> None:
    counter = Counter()
    with Pool(1, counter.start) as pool:
        with pytest.raises(Exited) as first:
            pool.get(BROKEN)
        with pytest.raises(Exited) as second:
            pool.get(BROKEN)
        assert second.value is first.value
        assert counter.events == ["start broken"]
        pool.get(A)


def test_failure_while_serving_is_remembered() -> None:
    counter = Counter()
    with Pool(1, counter.start) as pool:
        pool.get(A)
        pool.fail(A, Hang("decode: no progress for 3 s (limit 3 s)", waited_s=3, limit_s=3))
        with pytest.raises(Hang):
            pool.get(A)
    assert counter.events == ["start a", "stop a"]


def test_stop_lets_a_profile_be_launched_again() -> None:
    counter = Counter()
    with Pool(1, counter.start) as pool:
        pool.get(A)
        assert pool.stop(A) is not None and pool.stop(A) is None
        pool.get(A)
    assert counter.events == ["start a", "stop a", "start a", "stop a"]


def test_same_name_other_settings_is_another_server() -> None:
    counter = Counter()
    with Pool(2, counter.start) as pool:
        assert pool.get(A) is not pool.get(Profile(name="a", tp=2))


def test_threads_never_exceed_the_capacity_nor_lose_a_server_in_use() -> None:
    counter = Counter()
    failures: list[str] = []

    def work(profile: Profile) -> None:
        for _ in range(5):
            with pool.use(profile) as server:
                time.sleep(0.005)
                if f"stop {server.launch}" in counter.events[-1:]:
                    failures.append(server.launch)

    with Pool(2, counter.start) as pool:
        threads = [threading.Thread(target=work, args=(p,)) for p in (A, B, C, A, B, C)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert counter.most <= 2 and counter.running == 0 and not failures


def test_closed_pool_starts_nothing() -> None:
    counter = Counter()
    pool = Pool(1, counter.start)
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.get(A)
    assert counter.events == []


def test_real_servers_side_by_side(fake_spec: SpecMaker) -> None:
    def starter(profile: Profile) -> Server:
        return start(fake_spec({"profile": profile}))

    with Pool(2, starter) as pool:
        threads = [threading.Thread(target=pool.get, args=(profile,)) for profile in (A, B)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.get(A).port != pool.get(B).port
    assert all(not teardown.killed for teardown in pool.teardowns.values())


def test_servers_end_at_the_same_time() -> None:
    """One that waits for GPU memory that another still holds must not keep that other up."""
    both = threading.Barrier(2)

    class Waiting(_Fake):
        def stop(self) -> Any:
            both.wait(10)
            return super().stop()

    counter = Counter()
    pool = Pool(2, lambda profile: cast(Server, Waiting(profile.name, counter)))
    for profile in (A, B):
        pool.get(profile)
    pool.close()
    assert list(pool.teardowns) == ["a", "b"]
