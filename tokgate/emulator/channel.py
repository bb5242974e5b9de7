"""Length-prefixed messages between the emulator's processes, over a Unix socket pair."""

from __future__ import annotations

import marshal
import socket
import struct
from typing import Any

HEADER = struct.Struct("<I")
BUFFER_BYTES = 1 << 20


class Channel:
    """One end of a message stream.

    Args:
        sock: connected stream socket. Blocking in the children, non-blocking in the parent, whose
            event loop must never wait for a stopped child.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = False
        self._incoming = bytearray()
        self._outgoing = bytearray()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self.sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether unsent bytes wait for the socket to become writable."""
        return bool(self._outgoing)

    def send(self, message: Any) -> None:
        """Queue a message, send what the socket takes. A dead peer swallows it, as a ZeroMQ socket does."""
        if self.closed:
            return
        payload = marshal.dumps(message)
        self._outgoing += HEADER.pack(len(payload)) + payload
        self.flush()

    def flush(self) -> None:
        """Send queued bytes."""
        while self._outgoing:
            try:
                sent = self.sock.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def receive(self) -> list[Any]:
        """All whole messages that have arrived; sets ``closed`` at end of stream."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return []
        buffer = self._incoming
        buffer += data
        messages = []
        while len(buffer) >= HEADER.size:
            (size,) = HEADER.unpack_from(buffer)
            end = HEADER.size + size
            if len(buffer) < end:
                break
            messages.append(marshal.loads(memoryview(buffer)[HEADER.size : end]))
            del buffer[:end]
        return messages


def pair() -> tuple[Channel, Channel]:
    """Two connected ends."""
    left, right = socket.socketpair()
    return Channel(left), Channel(right)
