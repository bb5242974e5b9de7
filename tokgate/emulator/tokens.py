"""Token ids and their text: a deterministic function of the prompt, the same with and without speculation."""

from __future__ import annotations

import re
import zlib

VOCABULARY = 32000
SPECIAL = 3
_MASK = (1 << 64) - 1
_PIECES = re.compile(r" ?t(\d+)|\s*[A-Za-z]{1,6}|\s*\d{1,3}|\s*[^\sA-Za-z0-9]|\s+")


def mix(value: int) -> int:
    """One step of the splitmix64 generator: 64 bits in, 64 well-spread bits out."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def seed_of(prompt: list[int], salt: int = 0) -> int:
    """State of the chain after a prompt. Every token counts, and their order."""
    packed = b"".join(token.to_bytes(4, "little", signed=False) for token in prompt)
    return mix(zlib.crc32(packed) | (zlib.adler32(packed) << 32) ^ salt)


def next_token(state: int) -> tuple[int, int]:
    """The greedy token that follows a state, and the state after it."""
    token = SPECIAL + (state >> 17) % (VOCABULARY - SPECIAL)
    return token, mix(state ^ token)


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


def logprobs_of(token: int, state: int, top: int) -> tuple[float, list[tuple[float, int]]]:
    """Log-probability of a greedy token, and the ``top`` best tokens with theirs, best first.

    The chosen token is the best one, except that the values leave a margin that differs by context,
    so that near ties exist as they do with a real model.
    """
    draw = mix(state ^ 0xA5A5)
    best = -0.02 - (draw & 0xFFFF) / 0xFFFF
    ranked = [(best, token)]
    margin = 0.05 + ((draw >> 16) & 0xFFFF) / 0x8000
    for rank in range(1, top):
        draw = mix(draw)
        ranked.append((best - margin * rank, SPECIAL + draw % (VOCABULARY - SPECIAL)))
    return best, ranked[:top]
