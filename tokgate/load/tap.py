"""A tap on the wire: the kernel writes the headers of a server's packets, with its stamps, into a ring in memory.

The ring fills without this process being scheduled, so what it holds is right however long the process waits
for a CPU. It needs the right to open packet sockets (CAP_NET_RAW) and a server on plain TCP. Standard
library only. Source: Linux, Documentation/networking/packet_mmap.rst and filter.rst (TPACKET_V3, classic BPF).
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
import time
from array import array
from typing import BinaryIO

_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION = 263, 5, 6, 10
_V3 = 2
_ATTACH_FILTER = 26
_ETH_P_ALL = 3
_OUTGOING = 4
_PACKET_TYPE = 0xFFFFF000 + 4  # BPF: load the packet's type in place of its bytes
SNAP = 128  # bytes kept of a packet: the longest IP and TCP headers
BLOCK = 1 << 18
BLOCKS = 256  # 64 MiB: about 380,000 packets
RETIRE_MS = 20
_USER = 1  # a block that is ours to read
_BLOCK_HEAD = struct.Struct("<8xIII")  # status, packets, offset of the first
_PACKET = struct.Struct("<IIIIIIHH")  # next, seconds, nanoseconds, bytes kept, length, status, mac, net
_TCP = struct.Struct(">HHIxxxxBB")  # source port, destination port, sequence, header length, flags
_SYN = 2
# Flags of a kept packet.
FROM_SERVER, OPENS = 1, 2


def allowed() -> bool:
    """Whether this process may open packet sockets."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0).close()
    except OSError:
        return False
    return True


class Tap:
    """A ring that holds the packets of one TCP port.

    Args:
        port: the server's.
        family: AF_INET or AF_INET6.

    Attributes:
        drops: packets that found the ring full.

    Raises:
        PermissionError: this process may not open packet sockets.
        OSError: no memory for the ring.
    """

    def __init__(self, port: int, family: int) -> None:
        self._port, self._family = port, family
        self._next = 0
        self._local, self._flags = array("H"), array("B")
        self._sequence, self._length, self._stamp = array("I"), array("I"), array("q")
        self.drops = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        try:
            self._attach(_filter(port, family))
            self._socket.setsockopt(_SOL_PACKET, _VERSION, _V3)
            ring = struct.pack("7I", BLOCK, BLOCKS, 2048, BLOCK // 2048 * BLOCKS, RETIRE_MS, 0, 0)
            self._socket.setsockopt(_SOL_PACKET, _RX_RING, ring)
            self._ring = mmap.mmap(self._socket.fileno(), BLOCK * BLOCKS, mmap.MAP_SHARED)
        except OSError:
            self._socket.close()
            raise

    def _attach(self, program: bytes) -> None:
        code = ctypes.create_string_buffer(program)
        self._socket.setsockopt(
            socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(code))
        )

    def relieve(self) -> None:
        """Empty the ring if it is half full: what can wait until after the run should."""
        ahead = (self._next + BLOCKS // 2) % BLOCKS
        if _BLOCK_HEAD.unpack_from(self._ring, ahead * BLOCK)[0] & _USER:
            self._drain()

    def finish(self) -> None:
        """Take in what is left, once the kernel has given up the block that it fills."""
        time.sleep(3 * RETIRE_MS / 1e3)
        self._drain()
        _, drops, _ = struct.unpack("III", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        self.drops = drops

    def close(self) -> None:
        """Give the ring back."""
        self._ring.close()
        self._socket.close()

    def __len__(self) -> int:
        return len(self._stamp)

    def write(self, file: BinaryIO) -> None:
        """The packets: local ports, flags, sequence numbers, lengths of what they carry, stamps in ns."""
        for values in (self._local, self._flags, self._sequence, self._length, self._stamp):
            file.write(values.tobytes())

    def _drain(self) -> None:
        for _ in range(BLOCKS):
            at = self._next * BLOCK
            status, packets, first = _BLOCK_HEAD.unpack_from(self._ring, at)
            if not status & _USER:
                return
            self._take(at + first, packets)
            struct.pack_into("<I", self._ring, at + 8, 0)
            self._next = (self._next + 1) % BLOCKS

    def _take(self, at: int, packets: int) -> None:
        ring, six = self._ring, self._family == socket.AF_INET6
        for _ in range(packets):
            step, seconds, nanoseconds, _, _, _, _, net = _PACKET.unpack_from(ring, at)
            ip = at + net
            if six:
                tcp, length = ip + 40, int.from_bytes(ring[ip + 4 : ip + 6], "big")
            else:
                head = (ring[ip] & 15) * 4
                tcp, length = ip + head, int.from_bytes(ring[ip + 2 : ip + 4], "big") - head
            source, target, sequence, offset, flags = _TCP.unpack_from(ring, tcp)
            length -= (offset >> 4) * 4
            at += step
            if length <= 0 and not flags & _SYN:
                continue
            from_server = source == self._port
            self._local.append(target if from_server else source)
            self._flags.append((FROM_SERVER if from_server else 0) | (OPENS if flags & _SYN else 0))
            self._sequence.append(sequence)
            self._length.append(max(0, length))
            self._stamp.append(seconds * 1_000_000_000 + nanoseconds)


def _filter(port: int, family: int) -> bytes:
    """Packets from the port as they come in, packets to it as they go out: each once, on loopback too."""
    ldh, ldb, jeq, ret = 0x28, 0x30, 0x15, 0x06
    load_type = (0x20, 0, 0, _PACKET_TYPE)
    if family == socket.AF_INET6:
        protocol, source, target, index = (ldb, 0, 0, 6), (ldh, 0, 0, 40), (ldh, 0, 0, 42), None
        version = 0x60
    else:
        index = (0xB1, 0, 0, 0)  # X = length of the IP header
        protocol, source, target = (ldb, 0, 0, 9), (0x48, 0, 0, 0), (0x48, 0, 0, 2)
        version = 0x40
    body: list[tuple[int, int, int, int]] = [(ldb, 0, 0, 0), (0x54, 0, 0, 0xF0), (jeq, 0, -1, version)]
    body += [protocol, (jeq, 0, -1, 6)]
    body += [index] if index is not None else []
    body += [source, (jeq, 0, 3, port), load_type, (jeq, -1, 0, _OUTGOING), (ret, 0, 0, SNAP)]
    body += [
        target,
        (jeq, 0, -1, port),
        load_type,
        (jeq, 0, -1, _OUTGOING),
        (ret, 0, 0, SNAP),
        (ret, 0, 0, 0),
    ]
    last = len(body) - 1

    def distance(jump: int, at: int) -> int:
        return last - at - 1 if jump < 0 else jump

    return b"".join(
        struct.pack("HBBI", code, distance(jt, at), distance(jf, at), k)
        for at, (code, jt, jf, k) in enumerate(body)
    )
