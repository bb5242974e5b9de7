"""The arguments that a server prints when it starts: a ``ServerArgs(...)`` call, or a dict since 0.5.23, as values."""

from __future__ import annotations

import ast
import threading
from collections.abc import Mapping
from typing import Any

from tokgate.sglang import log_events as ev
from tokgate.sglang.log_grammar import Where, text

_PARSING = threading.Lock()
"""CPython before 3.12.2 keeps one recursion count for all threads that build syntax trees (its issue 106905); when a
collection in the middle of one lets another thread build, the first raises SystemError. Servers that start together
print their arguments at the same moment."""


def server_args(message: bytes, where: Where) -> ev.Event | None:
    """``server_args=ServerArgs(...)``, or ``server_args={...}`` as 0.5.23 prints."""
    return ev.ServerArgs(time=where[0], rank=where[1], values=_literal_fields(text(message)))


def _parsed(expression: str) -> ast.expr:
    with _PARSING:
        try:
            return ast.parse(expression, mode="eval").body
        except SystemError:
            # A thread that is not ours, such as one that prints a traceback, built a tree meanwhile.
            return ast.parse(expression, mode="eval").body


def _literal_fields(printed: str) -> Mapping[str, Any]:
    try:
        node = _parsed(printed.partition("=")[2].strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return {}
    pairs: list[tuple[str, ast.expr]] = []
    if isinstance(node, ast.Call):
        pairs = [(word.arg, word.value) for word in node.keywords if word.arg]
    elif isinstance(node, ast.Dict):
        pairs = [
            (str(key.value), value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
    return {name: _literal(value) for name, value in pairs}


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Call) and node.keywords and not node.args:
        # A nested record, as `CudaGraphConfig(decode=PhaseConfig(backend='full', ...), ...)`.
        return {word.arg: _literal(word.value) for word in node.keywords if word.arg}
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
    return value
