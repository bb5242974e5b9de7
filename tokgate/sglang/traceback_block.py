"""Collects a Python traceback out of a log, whole: chained exceptions and messages of many lines too."""

from __future__ import annotations

from tokgate.sglang.log_grammar import Where, text
from tokgate.sglang.log_words import FATAL

TRACEBACK = b"Traceback (most recent call last):"
MAX_LINES = 400
# Lines of an exception's own message; what follows without a header is then other output.
MAX_MESSAGE_LINES = 40
_CHAIN = (b"During handling of", b"The above exception")


class TracebackBlock:
    """One traceback in the making.

    Attributes:
        word: what its first line was judged to be: ``fatal``, ``benign``, ``suspect``.
        where: time and rank of its first line.
    """

    def __init__(self, first: bytes, where: Where, word: str) -> None:
        self.word = word
        self.where = where
        self._lines = [text(first)]
        self._raised = False
        self._message_lines = 0

    def take(self, part: bytes) -> bool:
        """Keep the next line without a header; ``False`` when it belongs to the traceback no more."""
        if self._raised and not self._lines[-1]:
            # After the exception's own line and a blank one, only a chained exception goes on.
            if not part.startswith((*_CHAIN, TRACEBACK)):
                return False
            self._raised, self._message_lines = False, 0
        if self._raised:
            self._message_lines += 1
            if self._message_lines > MAX_MESSAGE_LINES or FATAL.search(part[:200]):
                return False
        printed = text(part)
        if printed and not part[:1].isspace() and TRACEBACK not in part and not part.startswith(_CHAIN):
            self._raised = True
        if len(self._lines) < MAX_LINES:
            self._lines.append(printed)
        return True

    @property
    def lines(self) -> tuple[str, ...]:
        """What was collected, without blank lines at the end."""
        end = len(self._lines)
        while end and not self._lines[end - 1]:
            end -= 1
        return tuple(self._lines[:end])
