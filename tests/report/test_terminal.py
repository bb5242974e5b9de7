"""The end of a run says what its undecided verdicts make of it, and says what the exit code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokgate.report.terminal import summary_lines
from tokgate.verdict import Kind, Verdict, exit_code

PASS = Verdict(Kind.PASS, "startup[baseline]", "")
OPEN = Verdict(Kind.INCONCLUSIVE, "chat-bs1[baseline]", "")
BEYOND = Verdict(Kind.INCONCLUSIVE, "chat-bs8[baseline]", "", evidence={"beyond_limit": True})
VACUOUS = Verdict(Kind.VACUOUS, "startup[baseline]", "")


@pytest.mark.parametrize(
    ("verdicts", "strict", "line"),
    [
        (
            [PASS, OPEN, OPEN, VACUOUS],
            False,
            "green: nothing failed; 2 undecided, none measured beyond its limit",
        ),
        ([PASS, OPEN, OPEN], True, "not green: nothing failed; 2 undecided, which --strict-inconclusive"),
        (
            [PASS, OPEN, BEYOND],
            False,
            "not green: nothing failed; 2 undecided, of which 1 measured beyond the limit",
        ),
        ([OPEN, VACUOUS], False, "not green: nothing failed and nothing was decided; 1 undecided"),
        ([VACUOUS], False, "not green: nothing failed and nothing was decided; 0 undecided"),
    ],
)
def test_what_is_undecided_is_told_with_what_it_means(
    verdicts: list[Verdict], strict: bool, line: str
) -> None:
    lines = told(verdicts, strict)
    (said,) = [found for found in lines if found.startswith(line)]
    assert lines.index(said) == len(lines) - 2, "between the counts and the place of the results"
    assert exit_code(verdicts, strict_inconclusive=strict) == (0 if said.startswith("green") else 3)


@pytest.mark.parametrize("verdicts", [[PASS], [PASS, VACUOUS], [OPEN, Verdict(Kind.HANG, "x[y]", "")], []])
def test_where_all_is_decided_or_something_failed_the_counts_say_it(verdicts: list[Verdict]) -> None:
    assert not [line for line in told(verdicts, False) if "green" in line or "undecided" in line]


def told(verdicts: list[Verdict], strict: bool) -> list[str]:
    return summary_lines(
        verdicts,
        not_applicable={},
        folder=Path("results/1"),
        width=120,
        color=False,
        strict_inconclusive=strict,
    )
