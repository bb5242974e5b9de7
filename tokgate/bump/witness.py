"""Witness: what a bump wants to know of its servers beyond speed: arguments, memory, graphs, greedy answers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from tokgate.analysis.parity_case import Case
from tokgate.bump.defaults import settled
from tokgate.config.gate import ParitySizes
from tokgate.errors import LoadFault
from tokgate.gate import modelstore
from tokgate.gate.blocks.runner import Arm
from tokgate.gate.facts import ServerFacts, read_facts
from tokgate.gate.greedy import GreedyClient
from tokgate.gate.parity import SMALL_VOCABULARY, Answers, Parties, ask, cases, judge
from tokgate.gate.started import Started
from tokgate.server.running import Server
from tokgate.sglang.http import read_server_info

Side = Literal["old", "new"]
PARTIES = Parties("the new version against the old", "the old version", ("OLD_URL", "NEW_URL"))


class Witness:
    """Asked once a launch, after its runs. Satisfies :data:`tokgate.gate.blocks.arms.Extras`.

    Args:
        sides: arm -> profile and side.
        sizes: of the cases of greedy parity.
        parity: names of the cases; put to each side of a profile once.
        folder: where a diverging case is written.
        crowded: whether servers start on the same GPU at the same time.
        limit_s: longest wait for an answer.
    """

    def __init__(
        self,
        sides: Mapping[str, tuple[str, Side]],
        sizes: ParitySizes,
        parity: Collection[str],
        folder: Path,
        *,
        crowded: bool,
        limit_s: float,
    ) -> None:
        self._crowded = crowded
        self._sides = sides
        self._sizes = sizes
        self._parity_names = parity
        self._cases: dict[str, Case] = {}
        self._folder = folder
        self._limit_s = limit_s
        self._answers: dict[tuple[str, Side], dict[str, Answers]] = {}
        self._settled: set[str] = set()

    def known(self, arm: str) -> None:
        """An earlier call has asked this arm's server already."""
        self._settled.add(arm)

    def __call__(self, arm: Arm, server: Server, started: Started) -> Mapping[str, object]:
        """See :data:`tokgate.gate.blocks.arms.Extras`."""
        facts = read_facts(server.log_path, server.model_info)
        told: dict[str, object] = {
            "memory": memory(server, started, alone=not self._crowded),
            "captures": None if facts.captures is None else {k: list(v) for k, v in facts.captures.items()},
            "hybrid_line": facts.hybrid_line,
            "architectures": list(facts.architectures),
            "log": str(facts.log),
        }
        if arm.name not in self._settled:
            # Once a side: arguments and greedy answers do not depend on the launch.
            told["version"] = server.version
            told["arguments"] = settled(server.server_info) if server.server_info else None
            told["parity"] = self._parity(arm, server) if self._is_compared(arm) else []
            self._settled.add(arm.name)
        return told

    def _is_compared(self, arm: Arm) -> bool:
        """Whether the profile has a server of the other side: else nobody's answers are held against these."""
        profile, side = self._sides[arm.name]
        return any(of == profile and other != side for of, other in self._sides.values())

    def _parity(self, arm: Arm, server: Server) -> list[dict[str, Any]]:
        """Answers of this side; with those of the other side, the verdicts."""
        profile, side = self._sides[arm.name]
        if not self._cases:
            target = Path(str(server.server_info.get("model_path", "")))
            every = cases(self._sizes, modelstore.vocabulary(target) or SMALL_VOCABULARY)
            self._cases = {name: case for name, case in every.items() if name in self._parity_names}
        own = {
            name: self._ask(server, case, as_reference=side == "old") for name, case in self._cases.items()
        }
        self._answers[profile, side] = own
        old, new = self._answers.get((profile, "old")), self._answers.get((profile, "new"))
        if old is None or new is None:
            return []
        return [
            asdict(judge(name, case, profile, PARTIES, old[name], new[name], None, self._folder))
            for name, case in self._cases.items()
        ]

    def _ask(self, server: Server, case: Case, *, as_reference: bool) -> Answers:
        began_s = time.monotonic()
        try:
            with server.watch("greedy parity"):
                return ask(GreedyClient(server.url, self._limit_s), case, as_reference=as_reference)
        except LoadFault as fault:
            server.ensure_alive()
            waited_s = time.monotonic() - began_s
            if waited_s >= self._limit_s:
                raise server.hang("greedy parity", waited_s, self._limit_s) from fault
            raise


def memory(server: Server, started: Started, *, alone: bool) -> dict[str, float]:
    """Memory of a launch, unit in the name; what is not told is absent.

    Args:
        alone: whether nothing else started on its GPU meanwhile. SGLang tells weights and graphs by what became less
            on the whole GPU: beside others (seen on an H200: -0.8 to 40 GB for the same graphs) that is anybody's.
    """
    info = read_server_info(server.server_info)
    found: dict[str, float] = {}
    if alone:
        found |= {f"{name}_gb": value for name, value in info.memory_gb.items()}
        captured = [capture.gb for capture in started.captures if capture.gb is not None]
        if captured:
            found["graph_captures_gb"] = sum(captured)
    if info.max_total_tokens is not None:
        found["kv_cache_tokens"] = float(info.max_total_tokens)
    held = started.sample.metrics.get("gpu_memory_mib")
    if held is not None:
        found["gpu_memory_mib"] = held
    found["resident_mib"] = round(server.rss_mib(), 1)
    return found


def facts_of(extras: Mapping[str, Any]) -> ServerFacts:
    """The facts of a launch as they were kept with its block."""
    captures = extras.get("captures")
    return ServerFacts(
        None if captures is None else {kind: tuple(ranks) for kind, ranks in captures.items()},
        extras.get("hybrid_line"),
        tuple(extras.get("architectures") or ()),
        Path(str(extras.get("log", ""))),
    )
