"""The connections of the measuring worker: those that are open, and those that are free. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable

from tokgate.load.connection import READABLE, Address, Stream
from tokgate.load.record import Line

# Edge-triggered: the kernel need not look at each connection a second time after its read. An edge tells
# of new bytes once, so a read that may have left some is followed by another.
_WATCH = READABLE | select.EPOLLET | select.EPOLLRDHUP


class Pool:
    """Keep-alive connections to one server.

    Args:
        address: the server's.
        on_align: what streams call, see :class:`tokgate.load.connection.Stream`.
        poller: watches them.

    Attributes:
        streams: those that are open, by descriptor.
        lines: connections in the order of opening.
    """

    def __init__(
        self, address: Address, poller: select.epoll, on_align: Callable[[Stream], None] | None
    ) -> None:
        self._address = address
        self._poller = poller
        self._on_align = on_align
        self._free: list[Stream] = []
        self.streams: dict[int, Stream] = {}
        self.lines: list[Line] = []

    @property
    def free(self) -> bool:
        """Whether a stream waits for a request."""
        return bool(self._free)

    def reserve(self, count: int, within_s: float) -> None:
        """Open ``count`` connections and wait until they stand, no longer than ``within_s``.

        One that cannot be made stays closed: the request that needs it tries again, and says so.
        """
        for _ in range(count):
            stream = Stream(self._on_align)
            self._free.append(stream)
            with contextlib.suppress(OSError):
                self.open(stream)
        deadline = time.monotonic() + within_s
        while any(s.connecting for s in self.streams.values()) and time.monotonic() < deadline:
            for fd, _ in self._poller.poll(0.05):
                stream = self.streams[fd]
                try:
                    self.flush(stream)
                except OSError:
                    self.drop(stream)

    def take(self) -> Stream:
        """A free stream, or a new one that is not open yet."""
        return self._free.pop() if self._free else Stream(self._on_align)

    def give_back(self, stream: Stream) -> None:
        """The stream waits for a request."""
        self._free.append(stream)

    def open(self, stream: Stream) -> None:
        """Start to connect.

        Raises:
            OSError: refused at once, or no descriptor left.
        """
        fd = stream.open(self._address)
        self.streams[fd] = stream
        assert stream.line is not None
        self.lines.append(stream.line)
        self._poller.register(fd, _WATCH | select.EPOLLOUT if stream.connecting else _WATCH)

    def drop(self, stream: Stream) -> None:
        """Close the connection, if open."""
        if stream.sock is not None:
            self.streams.pop(stream.fd, None)
            self._poller.unregister(stream.fd)
            stream.close()

    def send(self, stream: Stream) -> None:
        """Send what can be sent; the rest when the connection takes more.

        Raises:
            OSError: the connection failed.
        """
        if not stream.write():
            self._poller.modify(stream.fd, _WATCH | select.EPOLLOUT)

    def flush(self, stream: Stream) -> None:
        """The connection takes more: it stands, or has sent something.

        Raises:
            OSError: it could not be made, or failed.
        """
        if stream.sock is None:
            return
        if stream.connecting:
            code = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            stream.connecting = False
        if stream.write():
            self._poller.modify(stream.fd, _WATCH)

    def close(self) -> None:
        """Close every connection."""
        for stream in list(self.streams.values()):
            self.drop(stream)
