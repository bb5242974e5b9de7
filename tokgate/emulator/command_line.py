"""First stage: read the command line and the scenario, check everything, hand plain settings on."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from tokgate.emulator import faults, flags, prepared, server_args
from tokgate.emulator.server_args import condition_of
from tokgate.emulator.settings import Settings, from_plain
from tokgate.emulator.version import DEFAULT_VERSION, release_of
from tokgate.errors import UsageFault

FAULT_VARIABLE = "TOKGATE_EMULATOR_FAULT"
DEFAULT_SCENARIO = "founding"
RUNS = (
    "The scatter of a scenario is per run. A run begins with the first request after a /flush_cache, or\n"
    "after an idle time of the scenario's run_gap_s (0.5 s); health probes and the server's warm-up are none."
)


def parser() -> argparse.ArgumentParser:
    """Options of the emulator itself; everything else is SGLang's."""
    own = argparse.ArgumentParser(
        prog="python -m tokgate.emulator",
        usage="%(prog)s --model-path NAME [SGLang's flags] [--scenario NAME|FILE] [--fault SPEC]...",
        description="An engine without a model: SGLang's protocol, timing from a scenario.",
        epilog=f"{RUNS}\n\nfaults, on every launch or with /N on every N-th by --launch-seed:\n{faults.overview()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    own.add_argument("--scenario", default=DEFAULT_SCENARIO, help="packaged scenario, or a .yaml file")
    own.add_argument("--scenario-override", action="append", default=[], metavar="KEY=VALUE",
                     help="lay a value over the scenario, like baseline.step_ms=13.3")  # fmt: skip
    own.add_argument("--fault", action="append", default=[], metavar="SPEC",
                     help=f"have a fault; also in ${FAULT_VARIABLE}, separated by spaces")  # fmt: skip
    own.add_argument("--emulated-version", default=DEFAULT_VERSION, metavar="VERSION",
                     help="SGLang version whose flags, log lines and fields are spoken")  # fmt: skip
    own.add_argument("--launch-seed", type=int, default=None, metavar="N",
                     help="draws launch effect and run scatter; left out, launches repeat")  # fmt: skip
    return own


def read(arguments: Sequence[str]) -> dict[str, Any]:
    """Settings in their JSON form (:func:`tokgate.emulator.settings.from_plain`).

    Raises:
        UsageFault: unusable scenario, fault, version or flag combination.
        SystemExit: argparse's, code 2, for a flag that the emulated version does not know.
    """
    own, rest = parser().parse_known_args(list(arguments))
    try:
        release_of(own.emulated_version)
    except ValueError as error:
        raise UsageFault(f"--emulated-version: {error}") from error
    specs = [*own.fault, *os.environ.get(FAULT_VARIABLE, "").split()]
    try:
        faults.Faults(specs)
    except faults.FaultSpecError as error:
        raise UsageFault(f"--fault: {error}") from error
    values, notices = flags.parse(rest, own.emulated_version)
    try:
        args = server_args.resolve(values, own.emulated_version)
    except flags.FlagFault as error:
        raise UsageFault(str(error)) from error
    plain = {
        "args": args,
        "plan": _plan(own.scenario, own.scenario_override, condition_of(args)),
        "faults": specs,
        "version": own.emulated_version,
        "launch_seed": own.launch_seed,
        "notices": notices,
    }
    _warn(from_plain(plain))
    return plain


def _warn(settings: Settings) -> None:
    """Say which faults cannot happen: a gate gives the same ones to profiles that differ."""
    for fault in settings.faults:
        if reason := settings.impossible(fault):
            print(
                f"tokgate.emulator: warning: fault {fault.spec} cannot happen here: {reason}", file=sys.stderr
            )


def _plan(scenario: str, overrides: list[str], condition: str) -> dict[str, Any]:
    """From the prepared store where that is enough; else pydantic and YAML come in, and go with the exec."""
    plan = None if overrides else prepared.plan_of(scenario, condition)
    if plan is None:
        from tokgate.emulator.scenario import Scenario

        plan = Scenario(scenario, overrides).plan(condition)
    return plan


def print_fault(error: UsageFault) -> int:
    """Print a fault and return its exit code."""
    print(f"tokgate.emulator: error: {error}", file=sys.stderr)
    return error.exit_code
