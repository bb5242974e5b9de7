"""``python -m ci.airgap pack REQUIREMENT --out DIR`` and ``python -m ci.airgap unpack DIR --to DIR``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ci.airgap import unpack
from tokgate.errors import TokgateError

RULES = Path(__file__).with_name("sglang.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m ci.airgap", description=__doc__)
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack", help="pack an environment into pieces")
    packing.add_argument("requirement", help="for instance sglang==0.5.15.post1")
    packing.add_argument("--out", type=Path, required=True, help="folder of the pieces, made")
    packing.add_argument("--piece-mib", type=float, default=60, help="size of a piece, MiB (default: 60)")
    packing.add_argument("--base", help="a version or pack that the runner has: only what differs is packed")
    packing.add_argument("--rules", type=Path, default=RULES, help="what is left out (default: sglang.yaml)")
    packing.set_defaults(action=_pack)
    unpack.add_arguments(commands.add_parser("unpack", help="install a pack on a runner"))
    options = parser.parse_args(arguments)
    try:
        return int(options.action(options))
    except TokgateError as error:
        print(f"ci.airgap: {error}", file=sys.stderr)
        return error.exit_code


def _pack(options: argparse.Namespace) -> int:
    from ci.airgap.pack import pack  # not needed, and its packages not there, on a runner that unpacks
    from ci.airgap.rules import load_rules

    piece_bytes = int(options.piece_mib * 2**20)
    report = pack(
        options.requirement, options.out, load_rules(options.rules), piece_bytes, base=options.base, say=print
    )
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
