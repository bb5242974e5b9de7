"""Faults that an emulated engine can be asked to have, ``--fault NAME[:ARGUMENT][@TPn][/EVERY]``.

With ``/3`` a fault happens on every third launch, as ``--launch-seed`` counts them from 0: seeds 2, 5, 8.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

CAPTURE_KINDS = ("target-verify", "target-decode", "draft-decode", "draft-extend")
PHASES = ("spawn", "imports", "weights", "kv-cache", "capture", "warmup")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        argument: what the argument means, empty when there is none.
        default: used when the argument is left out; ``None`` makes it mandatory.
        choices: the only arguments accepted, when not a number.
        rank: whether ``@TPn`` may name a rank.
        help: what happens.
    """

    help: str
    argument: str = ""
    default: str | None = None
    choices: tuple[str, ...] = ()
    rank: bool = False


KINDS: dict[str, Kind] = {
    "capture-hang": Kind("a graph capture never ends", "KIND", None, CAPTURE_KINDS, rank=True),
    "start-exit": Kind("dies with a traceback in a start-up phase", "PHASE", None, PHASES),
    "crash-first-replay": Kind("dies at the first generation, after good captures"),
    "abort": Kind("scheduler dies of a C++ abort that the parent misses", "AFTER_TOKENS", "8"),
    "scheduler-stop": Kind("scheduler stops itself (SIGSTOP)", "AFTER_TOKENS", "10"),
    "detokenizer-exit": Kind("detokenizer dies", "AFTER_TOKENS", "10"),
    "generation-dead": Kind("health says 200, generation never answers"),
    "stall": Kind("every stream falls silent", "AFTER_TOKENS", "16"),
    "teardown-hang": Kind("SIGTERM is ignored"),
    "survivor": Kind(
        "a process in a session of its own outlives the server, holding it", "WHAT", "port", ("port", "file")
    ),
    "wrong-token": Kind("one output token differs", "DEPTH", "8"),
    "repeat-token": Kind("one output token comes twice", "DEPTH", "8"),
    "truncate": Kind("output ends early, finish reason 'length'", "TOKENS", "16"),
    "swap-requests": Kind("concurrent requests get each other's tokens"),
    "stale-prefix": Kind("what the prefix cache holds is taken for another prompt's"),
    "tie-flip": Kind("the second-best token where it is less than so many nats behind", "NATS", "0.01"),
    "accept-one": Kind("no draft token is ever accepted: accept length 1.00"),
    "not-replayed": Kind("graphs are captured, but every pass runs without them"),
    "slow": Kind("every step takes longer by a factor", "FACTOR", "1.1"),
    "odd-rank": Kind("one rank captures slower and needs more memory", "TPn", "TP0"),
    "late-rank": Kind("one rank comes 2.5 s late to the graph captures, where the others wait", "TPn", "TP0"),
    "missing-metrics": Kind("/metrics lacks the graph and speculation counters"),
    "http-500": Kind("every n-th generation request fails with status 500", "EVERY", "3"),
    "early-close": Kind("connections close in mid-stream", "AFTER_TOKENS", "16"),
}

_FRACTIONS = ("slow", "tie-flip")


class FaultSpecError(Exception):
    """A fault that does not exist, or whose argument makes no sense."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as asked, ``spec`` in words.

    ``number`` is the argument as a number where it is one; ``rank`` is -1 for all; it happens on every
    ``every``-th launch.
    """

    name: str
    argument: str
    number: float = 0.0
    rank: int = -1
    spec: str = ""
    every: int = 1

    def is_due(self, launch_seed: int | None) -> bool:
        """Whether it happens on this launch; one without a seed is the first."""
        return ((launch_seed or 0) + 1) % self.every == 0


def parse(spec: str) -> Fault:
    """One SPEC.

    Raises:
        FaultSpecError: unknown name or bad argument; lists what is known.
    """
    what, slash, every_text = spec.partition("/")
    if slash and not (every_text.isdigit() and int(every_text) > 0):
        raise FaultSpecError(f"fault '{spec}': '/{every_text}' is no number of launches (expected like /5)")
    return replace(_parse(what), spec=spec, every=int(every_text) if slash else 1)


def _parse(spec: str) -> Fault:
    body, at, rank_text = spec.partition("@")
    name, colon, argument = body.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, KINDS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise FaultSpecError(f"no fault '{name}'; {hint}known:\n{overview()}")
    if colon and not kind.argument:
        raise FaultSpecError(f"fault '{name}' takes no argument, got '{argument}'")
    if not argument:
        if kind.argument and kind.default is None:
            raise FaultSpecError(f"fault '{name}' needs an argument: {usage(name, kind)}")
        argument = kind.default or ""
    if kind.choices and argument not in kind.choices:
        raise FaultSpecError(f"fault '{name}': '{argument}' is none of {', '.join(kind.choices)}")
    rank = -1
    if at:
        if not kind.rank:
            raise FaultSpecError(f"fault '{name}' cannot name a rank ('@{rank_text}')")
        rank = _rank(name, rank_text)
    if kind.argument == "TPn":
        return Fault(name, argument, rank=_rank(name, argument))
    number = 0.0
    if argument and not kind.choices:
        try:
            number = float(argument)
        except ValueError:
            raise FaultSpecError(f"fault '{name}': '{argument}' is no number") from None
        if not number > 0 or (name not in _FRACTIONS and number != int(number)):
            raise FaultSpecError(
                f"fault '{name}': {kind.argument} must be a positive number, got '{argument}'"
            )
    return Fault(name, argument, number, rank)


def _rank(name: str, text: str) -> int:
    if text.startswith("TP") and text[2:].isdigit():
        return int(text[2:])
    raise FaultSpecError(f"fault '{name}': '{text}' is no rank (expected like TP3)")


def usage(name: str, kind: Kind) -> str:
    """``name:ARGUMENT[@TPn]``, optional parts in brackets."""
    argument = f":{kind.argument}" if kind.default is None else f"[:{kind.argument}]"
    choices = f" ({'|'.join(kind.choices)})" if kind.choices else ""
    return f"{name}{argument if kind.argument else ''}{'[@TPn]' if kind.rank else ''}{choices}"


def overview() -> str:
    """All known faults, one a line."""
    texts = {usage(name, kind): kind.help for name, kind in KINDS.items()}
    return "\n".join(f"  {text}: {help_text}" for text, help_text in texts.items())


class Faults:
    """The faults of one server.

    Args:
        specs: as given on the command line.
        launch_seed: of this launch; faults that are not due on it are left out.
    """

    def __init__(self, specs: Sequence[str], launch_seed: int | None = None) -> None:
        self._by_name: dict[str, list[Fault]] = {}
        for spec in specs:
            fault = parse(spec)
            if not fault.is_due(launch_seed):
                continue
            self._by_name.setdefault(fault.name, []).append(fault)

    def __iter__(self) -> Iterator[Fault]:
        return iter([fault for found in self._by_name.values() for fault in found])

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def number(self, name: str) -> float | None:
        """Argument of a fault, ``None`` when the server does not have it."""
        found = self._by_name.get(name)
        return found[0].number if found else None

    def has(self, name: str, argument: str, rank: int | None = None) -> bool:
        """Whether a fault with that argument was asked for (and concerns that rank)."""
        return any(
            fault.argument == argument and (rank is None or fault.rank in (-1, rank))
            for fault in self._by_name.get(name, ())
        )
