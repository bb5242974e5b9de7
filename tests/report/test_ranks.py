"""The table of ranks, from the evidence of a start."""

from __future__ import annotations

from typing import Any

from tokgate.report import ranks
from tokgate.report.markdown import report
from tokgate.report.ranks import rank_tables
from tokgate.verdict import Kind, Verdict


def variable(name: str, value: str | None, by: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "by": by, "given": None, "given_by": None, "workers": [], **more}


def start(number: int, **more: Any) -> Verdict:
    names = [f"TP{rank}" for rank in range(number)] if number > 1 else [""]
    verify = [
        {"kind": "target-verify", "rank": r, "seconds": 1.4, "gb": 0.49, "available_gb": 6.98} for r in names
    ]
    draft = {"kind": "draft-extend", "rank": names[0], "seconds": 1.42, "gb": None, "available_gb": 6.5}
    titles = [
        f"sglang::scheduler_{r} ({n})" if r else f"sglang::scheduler ({n})" for n, r in enumerate(names)
    ]
    evidence = {
        "profile": "eagle3",
        "ranks": number,
        "captures": [*verify, draft],
        "odd_captures": [],
        "libraries": {title: {"torch": "2.11.0", "NCCL": "2.28.9"} for title in titles},
        "variables": [variable("NCCL_DEBUG", "WARN", "shell")],
        "nccl_version": "2.28.9",
        **more,
    }
    return Verdict(Kind.PASS, "startup[eagle3]", "ready", evidence=evidence)


def test_two_ranks() -> None:
    (table,) = rank_tables([start(2)])
    assert table.telling
    assert ranks.lines(table) == [
        "ranks of eagle3:",
        "  rank  target-verify   draft-extend                  torch   NCCL",
        "  TP0   1.4 s, 0.49 GB  1.42 s                        2.11.0  2.28.9",
        "  TP1   1.4 s, 0.49 GB  not printed (TP0 alone does)  2.11.0  2.28.9",
        "  environment: NCCL_DEBUG=WARN (shell)",
    ]


def test_a_rank_without_its_capture_is_not_passed_over() -> None:
    whole = start(2)
    captures = [c for c in whole.evidence["captures"] if c["rank"] == "TP0"]  # type: ignore[attr-defined]
    (table,) = rank_tables([start(2, captures=captures)])
    assert table.rows[1] == ("TP1", "none in the log", ranks.NOT_PRINTED, "2.11.0", "2.28.9")


def test_odd_ranks_and_variables_that_differ_are_said() -> None:
    odd = ["TP1 began target-verify graph capture 8.0 s after TP0, which waited for it"]
    own = [
        variable(
            "NCCL_ALGO", None, "SGLang", given="Ring", given_by="shell", workers=["sglang::scheduler_TP1"]
        ),
        variable("CUDA_DEVICE_MAX_CONNECTIONS", "8", "SGLang", given="1", given_by="shell"),
    ]
    (table,) = rank_tables([start(2, odd_captures=odd, variables=own)])
    assert ranks.lines(table)[-2:] == [
        f"  odd rank: {odd[0]}",
        "  environment: NCCL_ALGO is missing (SGLang removed it; shell: Ring) on sglang::scheduler_TP1, "
        "CUDA_DEVICE_MAX_CONNECTIONS=8 (SGLang; shell said 1)",
    ]


def test_versions_that_differ_show_by_rank() -> None:
    mixed = {
        "sglang::scheduler_TP0 (1)": {"torch": "2.11.0", "NCCL": "2.28.9"},
        "sglang::scheduler_TP1 (2)": {"torch": "2.11.0", "NCCL": "2.27.5"},
    }
    (table,) = rank_tables([start(2, libraries=mixed)])
    assert [row[-1] for row in table.rows] == ["2.28.9", "2.27.5"]
    (table,) = rank_tables([start(2, libraries={})])
    assert "  NCCL 2.28.9, as the log says" in ranks.lines(table)


def test_one_rank_is_for_the_report_not_for_the_terminal() -> None:
    (table,) = rank_tables([start(1)])
    assert not table.telling and table.rows[0][:2] == ("only one", "1.4 s, 0.49 GB")
    text = report(["tokgate"], [start(1)])
    assert "## Ranks, versions and environment" in text
    assert "| rank | target-verify | draft-extend | torch | NCCL |" in text
    assert "- environment: NCCL_DEBUG=WARN (shell)" in text


def test_other_verdicts_have_no_table() -> None:
    other = Verdict(Kind.PASS, "chat-bs1[eagle3]", "fine", evidence={"metric": "output_tok_s"})
    assert rank_tables([other]) == []
    assert "Ranks" not in report([], [other])
