"""Token ids and their text: a function of all tokens before, the same with and without speculation.

So the same tokens scored as a prompt give the same candidates as they gave when they were generated, but for
a wobble as kernels of different shape have it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

VOCABULARY = 32000
SPECIAL = 3
WOBBLE = 0.01
"""How far a top-2 gap moves at most between decoding and scoring as a prompt, nats."""
_MASK = (1 << 64) - 1
_PIECES = re.compile(r" ?t(\d+)|\s*[A-Za-z]{1,6}|\s*\d{1,3}|\s*[^\sA-Za-z0-9]|\s+")


def mix(value: int) -> int:
    """One step of the splitmix64 generator: 64 bits in, 64 well-spread bits out."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Chain:
    """What the imagined model makes of the tokens so far. Every token counts, and their order.

    Args:
        tokens: the first ones.
        salt: another model's, as it were.
    """

    __slots__ = ("_adler", "_crc", "_salt")

    def __init__(self, tokens: Iterable[int], salt: int = 0) -> None:
        self._crc, self._adler, self._salt = 0, 1, salt
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """One more token."""
        packed = token.to_bytes(4, "little")
        self._crc = zlib.crc32(packed, self._crc)
        self._adler = zlib.adler32(packed, self._adler)

    @property
    def state(self) -> int:
        """64 bits that decide what comes next."""
        return mix(self._crc | (self._adler << 32) ^ self._salt)


def next_token(state: int) -> int:
    """The greedy token in a state."""
    return SPECIAL + (state >> 17) % (VOCABULARY - SPECIAL)


def tokenize(text: str) -> list[int]:
    """Ids of a text: ``t123`` is token 123 again, anything else goes by pieces of a few characters."""
    ids = []
    for match in _PIECES.finditer(text):
        number = match.group(1)
        if number is not None and int(number) < VOCABULARY:
            ids.append(int(number))
        else:
            ids.append(SPECIAL + zlib.crc32(match.group().encode()) % (VOCABULARY - SPECIAL))
    return ids


def text_of(token: int) -> str:
    """Text of one token."""
    return f" t{token}"


def logprobs_of(
    token: int, state: int, top: int, *, as_prompt: bool = False
) -> tuple[float, list[tuple[float, int]]]:
    """Log-probability of a greedy token, and the ``top`` best tokens with theirs, best first.

    The chosen token is the best one; the second is 0 to 2 nats behind, differently in each state, so that
    one in some hundred is a near tie.

    Args:
        as_prompt: scored in a prefill, not while decoding: the gap is a little other.
    """
    draw = mix(state ^ 0xA5A5)
    best = -0.02 - (draw & 0xFFFF) / 0xFFFF
    ranked = [(best, token)]
    margin = ((draw >> 16) & 0xFFFF) / 0x8000
    if as_prompt:
        margin = max(0.0, margin + WOBBLE * (((draw >> 32) & 0xFFFF) / 0x8000 - 1))
    for rank in range(1, top):
        draw = mix(draw)
        ranked.append((best - margin * rank, SPECIAL + draw % (VOCABULARY - SPECIAL)))
    return best, ranked[:top]
