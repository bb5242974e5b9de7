"""Options of the gate beside pytest's: declared once, for pytest (``fixtures.options``) and for ``tokgate gate``."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tokgate.errors import UsageFault

SUITE = "perf_tests"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: as it is written.
        keywords: for ``add_argument`` of argparse, and ``addoption`` of pytest.
    """

    name: str
    keywords: Mapping[str, Any] = field(default_factory=dict)


def options(root: Path) -> list[Option]:
    """All of them; each is documented in docs/reference/options.md.

    Args:
        root: folder of the suite; files are looked for below it by default.
    """

    def take(name: str, metavar: str, help_: str, **more: Any) -> Option:
        return Option(name, {"metavar": metavar, "help": help_, **more})

    def flag(name: str, help_: str) -> Option:
        return Option(name, {"action": "store_true", "help": help_})

    results, baselines = root / "results", root / "baselines"
    return [
        take("--engine", "FILE|NAME", "engine.yaml, a made environment, or emulated[:SCENARIO]"),
        take("--profiles", "A,B", "profiles to run (default: all)"),
        take("--workloads", "A,B", "workloads to run (default: those of the engine)"),
        take("--model", "NAME|DIR", "model of profiles.yaml, or folder with target/ and draft/"),
        take("--runs", "N", "measured runs a workload (default: gate.yaml)", type=count),
        take("--startup-repeats", "N", "launches of each profile (default: 1)", type=count, default=1),
        take("--config-folder", "DIR", "where the YAML files stand", type=Path, default=root / SUITE),
        take("--results", "DIR", "where runs are stored", type=Path, default=results),
        take("--baselines", "DIR", "stored baselines", type=Path, default=baselines),
        take("--wait-gpu-s", "S", "queue for a GPU held by another gate", type=number, default=0.0),
        take("--budget-minutes", "M", "launch again, in blocks, to settle what is undecided", type=number),
        take("--reference-engine", "FILE|NAME", "build that blocks hold this one against"),
        take("--trace-steps", "N", "record so many steps of every workload", type=count, default=0),
        take("--start-together", "N", "servers on a GPU at once (default: 1)", type=count, default=1),
        flag("--strict-inconclusive", "an INCONCLUSIVE verdict fails"),
        take("--engine-flag", "FLAG", "passed to the engine as is", action="append", default=[]),
        take("--engine-fault", "[PROFILE=]SPEC", "plant a fault", action="append", default=[]),
        flag("--force", "start a pair that the check before the launch refuses"),
    ]


def count(text: str) -> int:
    """A whole number from 1 to 10000, for argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= 10000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 to 10000")
    return int(text)


def number(text: str) -> float:
    """A number, for argparse."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageFault(message.removeprefix("argument "))


def parse(
    root: Path, arguments: Sequence[str], more: Callable[[argparse.ArgumentParser], None]
) -> argparse.Namespace:
    """The gate's options among arguments that are otherwise pytest's.

    Args:
        root: as :func:`options`.
        more: adds options of pytest's that the caller wants to know.

    Raises:
        UsageFault: a value is missing or means nothing, or an option is all but one of these.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    known = options(root)
    for option in known:
        parser.add_argument(option.name, **option.keywords)
    more(parser)
    given, rest = parser.parse_known_args(arguments)
    for argument in rest:
        near = difflib.get_close_matches(
            argument.partition("=")[0], [o.name for o in known], n=1, cutoff=0.82
        )
        if argument.startswith("--") and near:
            raise UsageFault(f"unknown option {argument.partition('=')[0]}: did you mean {near[0]}?")
    return given
