"""Servers by profile, started when first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tokgate.config.profiles import Profile
from tokgate.errors import TokgateError
from tokgate.server.running import Server
from tokgate.server.teardown import Teardown

Starter = Callable[[Profile], Server]


class Pool:
    """Keeps at most ``capacity`` servers. Safe to use from several threads.

    A server that failed to start, or died, is not started again: the same error is raised for everyone who
    asks for its profile. Use :meth:`use` where servers run side by side, so that none is stopped
    to make room while it is in use.

    Args:
        capacity: how many servers fit at once.
        starter: makes a server of a profile; called outside of any lock but the profile's.

    Attributes:
        teardowns: how each stopped server ended, by launch.
    """

    def __init__(self, capacity: int, starter: Starter) -> None:
        if capacity < 1:
            raise ValueError(f"a pool needs room for a server, got capacity {capacity}")
        self.capacity = capacity
        self.teardowns: dict[str, Teardown] = {}
        self._starter = starter
        self._changed = threading.Condition()
        self._servers: dict[str, Server] = {}
        self._failed: dict[str, TokgateError] = {}
        self._starting: set[str] = set()
        self._users: dict[str, int] = {}
        self._closed = False

    def get(self, profile: Profile) -> Server:
        """The server of a profile, started when there is none; stops another before when full.

        Raises:
            TokgateError: its start failed, now or before.
        """
        return self._get(profile.digest + profile.name, profile, hold=False)

    def use(self, profile: Profile) -> Lease:
        """As :meth:`get`, as a context manager: while it is entered the server is not stopped for room."""
        return Lease(self, profile)

    def servers(self) -> list[Server]:
        """Servers that are up now."""
        with self._changed:
            return list(self._servers.values())

    def stop(self, profile: Profile) -> Teardown | None:
        """Stop a profile's server if it runs; a later :meth:`get` launches it again."""
        with self._changed:
            server = self._servers.pop(profile.digest + profile.name, None)
        return self._end(server) if server is not None else None

    def forget(self, profile: Profile) -> None:
        """Forget that a profile's server failed: for repeated starts, which count failures and go on."""
        with self._changed:
            self._failed.pop(profile.digest + profile.name, None)

    def fail(self, profile: Profile, error: TokgateError) -> None:
        """Remember that a profile's server failed while it served: everyone who asks gets this error."""
        key = profile.digest + profile.name
        with self._changed:
            self._failed.setdefault(key, error)
            server = self._servers.pop(key, None)
            self._changed.notify_all()
        if server is not None:
            self._end(server)

    def close(self) -> None:
        """Stop every server, and those that are still being started once they have. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._starting)
            servers = list(self._servers.values())
            self._servers.clear()
        if not servers:
            return
        # At the same time: one waits for GPU memory that the others still hold.
        with ThreadPoolExecutor(len(servers), "stop") as ends:
            for server, teardown in zip(servers, ends.map(lambda own: own.stop(), servers), strict=True):
                self.teardowns[server.launch] = teardown

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, key: str, profile: Profile, *, hold: bool) -> Server:
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("this pool of servers is closed")
                if key in self._failed:
                    raise self._failed[key]
                if key in self._servers:
                    # Most recently used last: the first that is idle is the one to go.
                    server = self._servers[key] = self._servers.pop(key)
                    self._users[key] = self._users.get(key, 0) + hold
                    return server
                victim = self._victim() if key not in self._starting else None
                if key not in self._starting and (victim is not None or self._room()):
                    break
                self._changed.wait()
            evicted = self._servers.pop(victim) if victim is not None and not self._room() else None
            self._starting.add(key)
        return self._launch(key, profile, evicted, hold)

    def _launch(self, key: str, profile: Profile, evicted: Server | None, hold: bool) -> Server:
        try:
            if evicted is not None:
                self._end(evicted)
            server = self._starter(profile)
        except TokgateError as error:
            with self._changed:
                self._failed[key] = error
            raise
        else:
            with self._changed:
                self._servers[key] = server
                self._users[key] = int(hold)
            return server
        finally:
            with self._changed:
                self._starting.discard(key)
                self._changed.notify_all()

    def _release(self, key: str) -> None:
        with self._changed:
            self._users[key] -= 1
            self._changed.notify_all()

    def _room(self) -> bool:
        return len(self._servers) + len(self._starting) < self.capacity

    def _victim(self) -> str | None:
        return next((key for key in self._servers if not self._users.get(key)), None)

    def _end(self, server: Server) -> Teardown:
        teardown = self.teardowns[server.launch] = server.stop()
        return teardown


class Lease:
    """A server in use. See :meth:`Pool.use`."""

    def __init__(self, pool: Pool, profile: Profile) -> None:
        self._pool = pool
        self._profile = profile
        self._key = profile.digest + profile.name

    def __enter__(self) -> Server:
        return self._pool._get(self._key, self._profile, hold=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool._release(self._key)
