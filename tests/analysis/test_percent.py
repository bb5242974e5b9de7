"""Percentages of scatters and detectable changes are said in one way, and none reads oddly."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tokgate.analysis.percent import detectable_text, percent_text

SOURCE = Path(__file__).parents[2] / "tokgate"


@pytest.mark.parametrize(
    ("share", "scatter", "detectable"),
    [
        (None, "unknown", "unknown"),
        (0.0, "0 %", "0 %"),
        (1e-7, "below 0.001 %", "below 0.001 %"),
        (0.00042, "0.042 %", "0.042 %"),
        (0.0052, "0.52 %", "0.52 %"),
        (0.0514, "5.1 %", "5.1 %"),
        (0.0994, "9.9 %", "9.9 %"),
        (0.0996, "10 %", "10 %"),
        (0.1238, "12 %", "12 %"),
        (0.784, "78 %", "78 %"),
        (0.994, "99 %", "99 %"),
        (0.9951, "100 %", "nothing below 100 %"),
        (1.4, "140 %", "nothing below 100 %"),
        (17.74, "more than 1000 %", "nothing below 100 %"),
        (5e21, "more than 1000 %", "nothing below 100 %"),
    ],
)
def test_every_size_reads_well(share: float | None, scatter: str, detectable: str) -> None:
    assert percent_text(share) == scatter
    assert detectable_text(share) == detectable


def test_nothing_else_formats_a_scatter_or_a_detectable_change() -> None:
    """Read from the source: a format of its own would bring "1.4e+02 %" back."""
    named = re.compile(r"scatter|detectable|spread|\bs0\b|\bleast\b|\.s\b")
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                for value, after in zip(node.values, [*node.values[1:], None], strict=True):
                    if (
                        isinstance(value, ast.FormattedValue)
                        and value.format_spec is not None
                        and isinstance(after, ast.Constant)
                        and str(after.value).startswith(" %")
                        and named.search(ast.unparse(value.value))
                    ):
                        found.append(f"{path.relative_to(SOURCE)}:{value.lineno}: {ast.unparse(value)}")
    assert found == []
