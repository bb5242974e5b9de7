"""One request inside the scheduler, and the prefix cache."""

from __future__ import annotations

from typing import Any

from tokgate.emulator import tokens
from tokgate.emulator.faults import Faults

CACHE_ENTRIES = 64
SAMPLING_SALT = 0x5A17


class Sequence:
    """A request while it is queued or running.

    Args:
        message: as the HTTP process sends it: ``rid``, ``ids``, ``max_new``, ``kind`` (user, warmup or
            health), ``temperature``, ``logprob``, ``top``, ``input_logprob_start``.
        faults: token faults apply to user requests only.
        salt: varies sampled (temperature > 0) outputs from request to request.
    """

    __slots__ = (
        "_flip", "_repeat", "_wrong", "cached", "chain", "histogram", "last", "logprob", "max_new", "partner",
        "passes", "plan", "produced", "prompt", "rid", "top", "user", "verify_count",
    )  # fmt: skip

    def __init__(self, message: dict[str, Any], faults: Faults, salt: int) -> None:
        self.rid: str = message["rid"]
        self.prompt: list[int] = message["ids"]
        self.max_new: int = message["max_new"]
        self.user: bool = message["kind"] == "user"
        self.logprob: bool = message["logprob"]
        self.top: int = message["top"]
        sampled = message["temperature"] > 0
        self.chain = tokens.Chain(self.prompt, SAMPLING_SALT * (salt + 1) if sampled else 0)
        self.produced = 0
        self.cached = 0
        self.last = 0
        self.plan: list[int] = []
        self.passes = 0
        self.verify_count = 0
        self.histogram: list[int] = []
        self.partner = False
        wrong, repeat, cut = (faults.number(name) for name in ("wrong-token", "repeat-token", "truncate"))
        self._wrong = int(wrong) if wrong and self.user else -1
        self._repeat = int(repeat) if repeat and self.user else -1
        self._flip = (faults.number("tie-flip") or 0.0) if self.user else 0.0
        if cut and self.user:
            self.max_new = min(self.max_new, int(cut))

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""
        return len(self.prompt) + self.produced

    @property
    def finished(self) -> bool:
        """Whether all wanted tokens are out."""
        return self.produced >= self.max_new

    def take(self, count: int) -> tuple[list[int], list[Any]]:
        """The next tokens, and their log-probabilities when asked for."""
        ids: list[int] = []
        logprobs: list[Any] = []
        for _ in range(min(count, self.max_new - self.produced)):
            state = self.chain.state
            token = tokens.next_token(state)
            if self.produced == self._repeat:
                token = self.last
            elif self.produced == self._wrong:
                token = tokens.SPECIAL + (token + 1) % (tokens.VOCABULARY - tokens.SPECIAL)
            elif self._flip:
                (best, _), (second, other) = tokens.logprobs_of(token, state, 2)[1]
                token = other if best - second < self._flip else token
            if self.logprob:
                logprobs.append(tokens.logprobs_of(token, state, self.top))
            if self.produced != self._repeat:
                self.chain.add(token)
            ids.append(token)
            self.last = token
            self.produced += 1
        return ids, logprobs

    def spoil(self) -> None:
        """Take the cached part for that of another prompt."""
        self.chain = tokens.Chain([self.prompt[0] + 1, *self.prompt[1:]])


class PrefixCache:
    """Which prompts were seen: a stand-in for the radix cache that counts shared prefixes.

    Args:
        enabled: off under ``--disable-radix-cache``.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._seen: list[list[int]] = []

    def match(self, prompt: list[int]) -> int:
        """Tokens of ``prompt`` that need no computing; its last one always does."""
        best = 0
        for other in self._seen:
            shared = 0
            for left, right in zip(prompt, other, strict=False):
                if left != right:
                    break
                shared += 1
            best = max(best, shared)
        return min(best, len(prompt) - 1)

    def add(self, prompt: list[int]) -> None:
        """Remember a prompt."""
        if self._enabled and prompt not in self._seen:
            self._seen.append(prompt)
            del self._seen[:-CACHE_ENTRIES]

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
