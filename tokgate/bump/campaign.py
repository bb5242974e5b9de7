"""Campaign of a bump: both versions of every profile measured in blocks until decided, faults and crashes included.

::

    <folder>/state.json         faults met and how servers are paired, kept so that a later call goes on the same
    <folder>/<profiles>/        the blocks of some profiles, as tokgate.gate.blocks.runner keeps them
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tokgate.analysis.looks import BLOCKS_MIN_CHANGE
from tokgate.bump.question import BumpAsk, Pairing
from tokgate.bump.witness import Side
from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.errors import EngineFault, HostFault, ResultsUnwritable, SampleFault, TokgateError
from tokgate.gate.blocks.deciding import Deciding, Spent, spend
from tokgate.gate.blocks.runner import Arm, Bench, BlockPlan, BlockRunner
from tokgate.gate.faults import verdict_of
from tokgate.load.sample import write_json
from tokgate.verdict import Kind, Verdict

OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|no GPU memory|mem.fraction.static", re.IGNORECASE
)
LESS: Mapping[Pairing, Pairing] = {"all": "pair", "pair": "apart"}


@dataclass(frozen=True, slots=True)
class Group:
    """Profiles that are measured in the same blocks.

    Attributes:
        sides: arm -> profile and side.
        deciding: profile -> its questions and blocks.
    """

    folder: Path | None
    sides: Mapping[str, tuple[str, Side]]
    runner: BlockRunner
    deciding: Mapping[str, Deciding]


class Standing(Protocol):
    """What is known of a bump: a :class:`Campaign`, or another view of the same blocks.

    Attributes: as of :class:`Campaign`; ``groups`` are those of profiles without a fault.
    """

    ask: BumpAsk
    faults: dict[str, Verdict]
    remarks: list[str]
    spent: Spent | None

    @property
    def groups(self) -> list[Group]:
        """Profiles without a fault, as they are measured together."""
        ...


MakeBench = Callable[[BlockPlan, Path | None, Mapping[str, tuple[str, Side]]], Bench]
"""Makes the bench of a group: its plan, its folder, its arms."""


class Campaign:
    """Measures a bump.

    Attributes:
        faults: profile -> why it cannot be measured to the end.
        remarks: what a reader must know, one line each.
        spent: how the last :meth:`run` ended; ``None`` before.

    Args:
        ask: what is asked.
        make_bench: gives servers, or a simulation of them.
        folder: kept there and taken up from there; ``None`` keeps nothing.
        clock: seconds, monotonic.

    Raises:
        UsageFault: the folder holds blocks of another ask.
        SampleFault: what it holds cannot be read.
    """

    def __init__(
        self,
        ask: BumpAsk,
        make_bench: MakeBench,
        folder: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ask = ask
        self.faults: dict[str, Verdict] = {}
        self.remarks: list[str] = []
        self.spent: Spent | None = None
        self._pairing: Pairing = ask.pairing
        self._make_bench = make_bench
        self._folder = folder
        self._clock = clock
        self._groups: dict[str, Group] = {}
        self._read_state()

    @property
    def groups(self) -> list[Group]:
        """Profiles without a fault, as they are measured together now."""
        sound = [profile for profile in self.ask.profiles if profile.name not in self.faults]
        sets = [sound] if self._pairing == "all" else [[profile] for profile in sound]
        return [self._group(profiles) for profiles in sets if profiles]

    def run(self, *, minutes: float | None = None, say: Callable[[str], object] = lambda line: None) -> None:
        """Measure until every verdict is reached or the budget is spent.

        Args:
            minutes: wall-clock budget of this call.
            say: told of each block.

        Raises:
            TokgateError: what is nobody's verdict: results that cannot be written, say.
        """
        began_s = self._clock()
        blocks = 0
        while True:
            left = None if minutes is None else minutes - (self._clock() - began_s) / 60
            deciding = [item for group in self.groups for item in group.deciding.values()]
            if not deciding or (left is not None and left <= 0):
                self.spent = Spent("minutes" if deciding else "decided", self._clock() - began_s, blocks)
                return
            before = sum(len(group.runner.blocks) for group in self.groups)
            try:
                spent = spend(
                    deciding, minutes=left, blocks_max=self.ask.blocks_max, clock=self._clock, say=say
                )
            except (EngineFault, HostFault) as fault:
                if isinstance(fault, ResultsUnwritable):
                    raise
                blocks += sum(len(group.runner.blocks) for group in self.groups) - before
                self._meet(fault, say)
                continue
            self.spent = Spent(spent.reason, self._clock() - began_s, blocks + spent.blocks)
            return

    def _meet(self, fault: TokgateError, say: Callable[[str], object]) -> None:
        """A fault ends a profile, or the way in which servers are paired when memory was short."""
        text = "\n".join((fault.headline, *fault.details, getattr(fault, "last_log_line", "")))
        if self._pairing != "apart" and OUT_OF_MEMORY.search(text):
            line = f"servers do not fit at once ({fault.headline}): fewer at a time from now on"
            self._pairing = LESS[self._pairing]
            self.remarks.append(line)
            say(line)
        else:
            profile, side = self._whose(fault)
            verdict = verdict_of(fault, f"bump[{profile or 'all'}]")
            named = f"{side} version" if side else "host or load"
            headline = f"{named}: {verdict.headline}"
            kind = verdict.kind
            if side == "old":
                kind, headline = Kind.INCOMPARABLE, f"{verdict.kind} of the old version: {verdict.headline}"
            for name in [profile] if profile else [p.name for p in self.ask.profiles]:
                if name not in self.faults:
                    told = {"profile": name, "metric": "readiness", "side": side, "fault": str(verdict.kind)}
                    self.faults[name] = Verdict(
                        kind, f"bump[{name}]", headline, verdict.body, files=verdict.files, evidence=told
                    )
            say(f"{kind} {headline}")
        for group in self.groups:
            group.runner.failed = None
        self._write_state()

    def _whose(self, fault: TokgateError) -> tuple[str | None, Side | None]:
        """Profile and side of the server that a fault came from; neither when it was no server's."""
        for group in self.groups:
            if group.runner.failed is not None:
                profile, side = group.sides[group.runner.failed]
                # The host's faults speak of no version.
                return profile, None if isinstance(fault, HostFault) else side
        return None, None

    def _group(self, profiles: Sequence[Profile]) -> Group:
        key = "+".join(profile.name for profile in profiles) + ("-apart" if self._pairing == "apart" else "")
        if key not in self._groups:
            sides, arms = sides_of(self.ask, profiles)
            plan = BlockPlan(
                tuple(arms),
                self.ask.workloads,
                self.ask.seed,
                self.ask.runs_per_arm,
                together=self._pairing != "apart",
            )
            folder = None if self._folder is None else self._folder / key
            runner = BlockRunner(plan, self._make_bench(plan, folder, sides), folder, clock=self._clock)
            # Accept length, graphs and greedy answers ask for no block: where nothing else does, so many are due.
            least = 0 if self.ask.tested else BLOCKS_MIN_CHANGE
            deciding = {
                profile.name: Deciding(
                    runner,
                    self.ask.questions(profile.name),
                    reference=arm_of(sides, profile.name, "old"),
                    candidate=arm_of(sides, profile.name, "new"),
                    least=least,
                )
                for profile in profiles
            }
            self._groups[key] = Group(folder, sides, runner, deciding)
        return self._groups[key]

    def _write_state(self) -> None:
        if self._folder is not None:
            # A host's fault may be gone with the next host: it is not taken up.
            kept = {name: asdict(v) for name, v in self.faults.items() if v.kind is not Kind.UNFIT}
            write_json(
                self._folder / "state.json",
                {"pairing": self._pairing, "faults": kept, "remarks": self.remarks},
            )

    def _read_state(self) -> None:
        path = None if self._folder is None else self._folder / "state.json"
        if path is None or not path.is_file():
            return
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            self._pairing = state["pairing"]
            self.faults = {name: stored_verdict(item) for name, item in state["faults"].items()}
            self.remarks = list(state["remarks"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SampleFault(f"{path}: {type(error).__name__}: {error}") from error


def sides_of(ask: BumpAsk, profiles: Sequence[Profile]) -> tuple[dict[str, tuple[str, Side]], list[Arm]]:
    """The arms of some profiles, and which profile and side each is."""
    sides: dict[str, tuple[str, Side]] = {}
    arms = []
    for profile in profiles:
        pairs: tuple[tuple[Side, Engine], ...] = (("old", ask.old), ("new", ask.new))
        for side, engine in pairs:
            name = re.sub(r"\W", "_", f"{side}_{profile.name}")
            sides[name] = (profile.name, side)
            arms.append(Arm(name, engine, profile))
    return sides, arms


def arm_of(sides: Mapping[str, tuple[str, Side]], profile: str, side: Side) -> str:
    """The arm of a profile's side."""
    return next(arm for arm, of in sides.items() if of == (profile, side))


def stored_verdict(data: Mapping[str, Any]) -> Verdict:
    """A verdict from its JSON form."""
    return Verdict(
        kind=Kind(data["kind"]),
        subject=data["subject"],
        headline=data["headline"],
        body=tuple(data["body"]),
        next_command=data["next_command"],
        files=tuple(data["files"]),
        evidence=data["evidence"],
    )
