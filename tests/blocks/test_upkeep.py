"""The gate says which baselines nobody needs, and which calibrations are missing, thin or old."""

from __future__ import annotations

import datetime
from dataclasses import replace

from tokgate.analysis.calibration import AABlock, Calibration, Session
from tokgate.config.engine import emulated_engine
from tokgate.gate import upkeep
from tokgate.gate.blocks import calibrations
from tokgate.gate.setup import Setup

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)


def test_orphans_are_named_and_the_others_are_not(setup: Setup) -> None:
    assert upkeep.remarks(setup) == []
    folder = setup.request.baselines / setup.host_class
    for path in (
        "baseline/chat-bs1.yaml",
        "baseline/chat-bs4.yaml",
        "baseline/startup.yaml",
        "gone/chat-bs1.yaml",
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    (told,) = upkeep.remarks(setup)
    assert told.startswith("1 stored baseline belongs to no profile") and told.endswith("gone/chat-bs1.yaml")


def test_calibrations_are_told_on_real_engines_and_where_blocks_are_judged(setup: Setup) -> None:
    real = replace(setup, engine=replace(setup.engine, kind="cpu"))
    asked = replace(setup, request=replace(setup.request, budget_minutes=5.0), reference=emulated_engine())
    for each in (real, asked):
        assert "no calibration on" in upkeep.remarks(each, NOW)[0]
    block = AABlock((900.0, 910.0), (905.0, 890.0))
    session = Session("2026-01-01T00:00:00+00:00", (block,) * 3)
    found = Calibration(
        setup.host_class, "baseline", "chat-bs1", "output_tok_s", "tok/s", "higher", (session,)
    )
    (path,) = calibrations.store(setup.request.baselines, {("chat-bs1", "output_tok_s"): found})
    thin, old = upkeep.remarks(real, NOW)
    assert "holds 3 A/A blocks of 20" in thin and "is 151 days old (limit 30)" in old
    path.write_text("nonsense")
    assert "calibration:" in upkeep.remarks(real, NOW)[0]
