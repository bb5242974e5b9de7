"""What the processes of one emulated server know from the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokgate.emulator.faults import Fault, Faults
from tokgate.emulator.version import release_of


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one server.

    Attributes:
        args: server arguments after SGLang's own changes (:func:`tokgate.emulator.server_args.resolve`).
        plan: the scenario's figures for this condition.
        faults: what shall go wrong.
        version: SGLang version whose formats are spoken.
        launch_seed: see :class:`tokgate.emulator.timing.Timing`.
        notices: lines about deprecated flags, printed first.
    """

    args: dict[str, Any]
    plan: dict[str, Any]
    faults: Faults
    version: str
    launch_seed: int | None
    notices: tuple[str, ...] = ()

    @property
    def patch(self) -> int:
        """Third number of the version, by which formats differ."""
        return release_of(self.version)[2]

    @property
    def ranks(self) -> int:
        """Number of tensor-parallel ranks, one scheduler each."""
        return int(self.args["tp_size"])

    @property
    def speculative(self) -> bool:
        """Whether a draft model runs."""
        return self.args["speculative_algorithm"] is not None

    @property
    def draft_extend_graph(self) -> bool:
        """Whether the draft extend pass is captured: depends on attention backend and release."""
        args = self.args
        backend = args["speculative_draft_attention_backend"] or args["attention_backend"]
        since = {"triton": 8, "flashinfer": 14, "fa3": 23}.get(backend, 8)
        return self.speculative and bool(args["emulated_decode_graphs"]) and self.patch >= since

    @property
    def captures(self) -> set[str]:
        """Kinds of CUDA graphs that are captured, in the words of the ``capture-hang`` fault."""
        if not self.args["emulated_decode_graphs"]:
            return set()
        if not self.speculative:
            return {"target-decode"}
        kinds = {"target-verify"}
        if self.args["speculative_num_steps"] > 1:
            kinds.add("draft-decode")
        if self.draft_extend_graph:
            kinds.add("draft-extend")
        return kinds

    def impossible(self, fault: Fault) -> str:
        """Why a fault cannot happen under these settings; empty when it can."""
        if fault.rank >= self.ranks:
            return f"no rank TP{fault.rank} with tp-size {self.ranks}"
        if fault.name == "capture-hang" and fault.argument not in self.captures:
            return f"it is not captured ({', '.join(sorted(self.captures)) or 'nothing'} is)"
        if fault.name == "accept-one" and not self.speculative:
            return "no speculation"
        if fault.name == "not-replayed" and not self.captures:
            return "no graphs"
        return ""

    @property
    def graph_word(self) -> str:
        """How batch lines name the graphs of this device."""
        return "cpu graph" if self.args["device"] == "cpu" else "cuda graph"


def from_plain(data: dict[str, Any]) -> Settings:
    """Settings from their JSON form."""
    return Settings(
        args=data["args"],
        plan=data["plan"],
        faults=Faults(data["faults"], data["launch_seed"]),
        version=data["version"],
        launch_seed=data["launch_seed"],
        notices=tuple(data["notices"]),
    )
