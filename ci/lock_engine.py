"""Renew an engine's lock: ``python ci/lock_engine.py cpu-0.5.23 --find-links DIR``.

Reads ``tokgate/environments/locks/NAME.in`` and writes ``NAME.txt`` beside it: every package of the
engine's environment, pinned, with the hashes of all its files. Needs uv. DIR holds torch's CPU wheel;
its hash is added to those of the package index, so that the lock accepts either build of that version.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "tokgate" / "environments" / "locks"
TORCH, TORCHVISION = "torch==2.13.0", "torchvision==0.28.0"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="for instance cpu-0.5.23")
    parser.add_argument("--find-links", type=Path, required=True, help="folder of torch's CPU wheel")
    options = parser.parse_args()
    version = options.name.partition("-")[2]
    source = (LOCKS / f"{options.name}.in").read_text()
    links = ["--find-links", str(options.find_links)]
    blocks = compiled(f"{source}\n{TORCH}\n", *links)
    cpu_torch = blocks.pop("torch")
    public = compiled(f"{source}\n{TORCH}\n")
    differing = [name for name in blocks if pin(blocks[name]) != pin(public.get(name, ""))]
    if differing:
        sys.exit(f"pin in {options.name}.in what torch's CUDA build asks for: {', '.join(differing)}")
    for requirement in (f"sglang=={version}", TORCHVISION, TORCH):
        blocks |= compiled(requirement, "--no-deps")
    hashes = sorted(set(re.findall(r"sha256:\w+", blocks["torch"] + cpu_torch)))
    blocks["torch"] = " \\\n".join([TORCH, *(f"    --hash={digest}" for digest in hashes)])
    head = (
        f"# {options.name}: written by ci/lock_engine.py from {options.name}.in; CPython 3.11, Linux x86-64\n"
    )
    (LOCKS / f"{options.name}.txt").write_text(
        head + "\n".join(blocks[name] for name in sorted(blocks)) + "\n"
    )
    print(f"{options.name}.txt: {len(blocks)} packages")


def pin(block: str) -> str:
    """``name==version`` of a package's lines."""
    return block.partition(" ")[0]


def compiled(requirements: str, *options: str) -> dict[str, str]:
    """Package name to its lines in a compiled requirements file."""
    command = [
        *("uv", "pip", "compile", "-", "--quiet", "--generate-hashes", "--no-header", "--no-annotate"),
        *("--no-emit-index-url", "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_34"),
        *options,
    ]
    done = subprocess.run(command, input=requirements, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    blocks = re.split(r"\n(?=\S)", done.stdout.strip())
    return {block.partition("==")[0]: block for block in blocks}


if __name__ == "__main__":
    main()
