"""One keep-alive connection of the measuring worker, and the request on it. Standard library only."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tokgate.load.record import NO_STAMP, Line, Record
from tokgate.load.wire import Response

SO_TIMESTAMPNS = 35  # Linux, 64-bit: SO_TIMESTAMPNS_OLD; the message holds two 64-bit integers.
CONTROL = socket.CMSG_SPACE(16)
READ_SIZE = 65536
READABLE = select.EPOLLIN
SHIFT = 17  # a read's size needs as many bits
NO_SHAPE = -(1 << 60)
Address = tuple[int, Any]  # family, sockaddr
# sock.recvmsg_into
Receive = Callable[[list[bytearray], int], tuple[int, list[tuple[int, int, bytes]], int, Any]]


class Stream:
    """A connection and what is on it.

    Args:
        on_align: called when :meth:`align` was, with this stream.

    Attributes:
        sock: ``None`` while closed.
        fd: the socket's descriptor, -1 while closed.
        recv: ``sock.recvmsg_into``.
        line: what is known of this connection.
        aligned: the next read may be one whole event in the middle of a stream.
        shift: where the last event had its finish reason, in bytes from its end, times 2 ** SHIFT: the key of its
            shape less its size. NO_SHAPE while there is none, or the next read is no event.
        opening: the first event, until the second has come; kept where output ids are asked for.
        progress_ns, progress_at_ns: time of the last event at the last look, and when it last changed (monotonic).
        request, unsent: the request's bytes, and those still to be written.
        served: responses completed on this connection.
    """

    __slots__ = (
        "_mark",
        "aligned",
        "connecting",
        "fd",
        "line",
        "on_align",
        "opening",
        "progress_at_ns",
        "progress_ns",
        "record",
        "recv",
        "request",
        "response",
        "served",
        "shift",
        "sock",
        "unsent",
    )

    def __init__(self, on_align: Callable[[Stream], None] | None = None) -> None:
        self.on_align = on_align
        self.sock: socket.socket | None = None
        self.fd = -1
        self.recv: Receive | None = None
        self.line: Line | None = None
        self.connecting = False
        self.record: Record | None = None
        self.response = Response()
        self.aligned = False
        self._mark = -1
        self.shift = NO_SHAPE
        self.opening: bytes | None = None
        self.progress_ns = self.progress_at_ns = 0
        self.request = memoryview(b"")
        self.unsent = self.request
        self.served = 0

    def open(self, address: Address) -> int:
        """Start to connect; returns the socket's descriptor.

        Raises:
            OSError: refused at once, or no descriptor left.
        """
        family, where = address
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A kernel or sandbox without stamps: the user clock is used, and the audit says so.
            ask_for_stamps(sock)
            code = sock.connect_ex(where)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError:
            sock.close()
            raise
        self.adopt(sock)
        self.line = Line(sock.getsockname()[1])
        self.connecting = code != 0
        self.served = 0
        self.unsent = memoryview(b"")
        return self.fd

    def adopt(self, sock: socket.socket) -> None:
        """Receive from this socket."""
        self.sock, self.recv, self.fd = sock, sock.recvmsg_into, sock.fileno()
        self.align(False)

    def close(self) -> None:
        """Close the connection, if open."""
        self.align(False)
        if self.sock is not None:
            self.sock.close()
        self.sock = self.recv = None
        self.fd = -1
        self.connecting = False

    def begin(self, record: Record, request: memoryview, now_ns: int) -> None:
        """Put a request on the connection; :meth:`write` sends it."""
        self.record = record
        self.response = Response()
        self._mark = -1
        self.align(False)
        self.opening = None
        self.progress_ns, self.progress_at_ns = 0, now_ns
        self.request = self.unsent = request

    def align(self, aligned: bool) -> None:
        """Whether the next read may be one whole event in the middle of a stream."""
        self.aligned = aligned
        self.shift = self._mark << SHIFT if aligned and self._mark >= 0 else NO_SHAPE
        if self.on_align is not None:
            self.on_align(self)

    @property
    def learned(self) -> bool:
        """Whether it is known where its events have their finish reason."""
        return self._mark >= 0

    def learn(self, mark: int) -> None:
        """The events have their finish reason ``mark`` bytes from their end; below 0: not known."""
        self._mark = mark
        self.align(self.aligned)

    def write(self) -> bool:
        """Send what can be sent.

        Returns:
            Whether all of it went out.

        Raises:
            OSError: the connection failed.
        """
        if self.connecting or self.sock is None:
            return False
        while self.unsent:
            try:
                sent = self.sock.send(self.unsent)
            except BlockingIOError:
                return False
            self.unsent = self.unsent[sent:]
        return True


def ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives; False where it cannot."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def stamp_of(control: list[tuple[int, int, bytes]]) -> bytes:
    """The kernel's stamp among a read's control messages, zeros when there is none."""
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == 16:
            return data
    return NO_STAMP


@contextmanager
def warm_stamps(limit_s: float = 0.5) -> Iterator[bool]:
    """Have the kernel stamp loopback reads while the body runs.

    It starts to stamp a little after the first socket has asked for it, and stops when no socket asks any
    more: a socket of our own asks throughout, so that none of the body's reads comes too early.

    Yields:
        Whether it stamps within ``limit_s``.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sender:
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
        with receiver:
            yield ask_for_stamps(receiver) and _stamped_within(limit_s, sender, receiver)


def _stamped_within(limit_s: float, sender: socket.socket, receiver: socket.socket) -> bool:
    deadline = time.monotonic() + limit_s
    buffer = [bytearray(16)]
    while time.monotonic() < deadline:
        sender.send(b"x")
        if stamp_of(receiver.recvmsg_into(buffer, CONTROL)[1]) != NO_STAMP:
            return True
        time.sleep(0.002)
    return False


def is_cumulative(first: bytes, second: bytes) -> bool:
    """Whether the second event repeats the output ids of the first (SGLang from 0.5.6)."""
    try:
        before, after = json.loads(first)["output_ids"], json.loads(second)["output_ids"]
        return len(after) > len(before) and after[: len(before)] == before
    except (ValueError, KeyError, TypeError):
        return False
