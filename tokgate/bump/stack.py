"""What is installed in an engine's environment, and what moved between two of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tokgate.config.engine import Engine
from tokgate.environments.lock import normalised

_ASK_S = 120.0
# Runs in the engine's interpreter with its PYTHONPATH. Reads metadata alone: torch is not imported, its CUDA
# version is read from the text of its version file.
_ASK = """
import importlib.metadata as m, importlib.util as u, json, pathlib, platform, re
found = {}
for d in m.distributions():
    name = d.metadata["Name"] if d.metadata else None
    if name and name not in found:
        found[name] = d.version
cuda = None
spec = u.find_spec("torch")
if spec and spec.origin:
    path = pathlib.Path(spec.origin).parent / "version.py"
    if path.is_file():
        text = path.read_text()
        hit = re.search(r"^cuda[^=]*= *['\\"]([^'\\"]+)", text, re.M)
        cuda = hit.group(1) if hit else None
        hit = re.search(r"^__version__ *= *['\\"]([^'\\"]+)", text, re.M)
        if hit and "torch" not in found:
            found["torch"] = hit.group(1)
print(json.dumps({"packages": found, "cuda": cuda, "python": platform.python_version()}))
"""

WEIGHTY = re.compile(
    r"sglang|torch$|torch-|torchao|triton|flashinfer|sgl-kernel|sglang-kernel|flash-attn|flash-mla|deep-ep|deepgemm|deep-gemm|"
    r"cutlass|nvidia-|cuda|transformers|xgrammar|nccl|cudnn|cublas|tilelang|quack|apache-tvm|tvm-ffi|outlines|"
    r"numpy|safetensors|compressed-tensors|uvloop|pyzmq|fastapi"
)
"""Packages that can move speed, memory or output; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What an environment holds.

    Attributes:
        packages: normalised name -> version; empty when it could not be read.
        cuda: that torch was built for.
        python: version of the interpreter.
        unknown: why nothing is known, when that is so.
    """

    packages: Mapping[str, str]
    cuda: str | None = None
    python: str | None = None
    unknown: str | None = None

    def lock(self) -> str:
        """The resolved lock: one ``name==version`` a line, sorted."""
        return "".join(f"{name}=={version}\n" for name, version in sorted(self.packages.items()))


@dataclass(frozen=True, slots=True)
class Move:
    """One package that differs; ``None`` where a side does not have it."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Moves:
    """What differs between two stacks.

    Attributes:
        weighty: what can move speed, memory or output, Python and CUDA included.
        others: the rest.
        unknown: why they could not be compared, one line a side.
    """

    weighty: tuple[Move, ...]
    others: tuple[Move, ...]
    unknown: tuple[str, ...] = ()


def read_stack(engine: Engine) -> Stack:
    """Ask an engine's interpreter what is installed, as its server will find it. Never raises for an engine
    that cannot be asked: then :attr:`Stack.unknown` says why."""
    if engine.kind == "emulated":
        return Stack({"sglang": engine.version}, unknown="an emulated engine has no environment")
    env = {**os.environ, **engine.env}
    if engine.pythonpath:
        env["PYTHONPATH"] = os.pathsep.join(engine.pythonpath)
    try:
        done = subprocess.run(
            [engine.python, "-c", _ASK], capture_output=True, text=True, timeout=_ASK_S, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Stack({}, unknown=f"{engine.python} cannot be asked: {error}")
    # A site hook may print before; the answer is the last line.
    lines = done.stdout.strip().splitlines()
    try:
        told = json.loads(lines[-1])
        packages = {normalised(name): str(version) for name, version in told["packages"].items()}
        return Stack(packages, told["cuda"], told["python"])
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Stack({}, unknown=f"{engine.python} does not tell what is installed: {last}")


def moves(old: Stack, new: Stack) -> Moves:
    """What differs; packages of one side only are named too."""
    unknown = tuple(
        f"{side}: {stack.unknown}" for side, stack in (("old", old), ("new", new)) if stack.unknown
    )
    found = [
        Move(name, old.packages.get(name), new.packages.get(name))
        for name in sorted({*old.packages, *new.packages})
        if old.packages.get(name) != new.packages.get(name)
    ]
    if unknown and not (old.packages and new.packages):
        return Moves((), (), unknown)
    heads = [
        Move(name, before, after)
        for name, before, after in (("CUDA of torch", old.cuda, new.cuda), ("Python", old.python, new.python))
        if before != after
    ]
    weighty = tuple(move for move in found if WEIGHTY.match(move.name))
    return Moves((*heads, *weighty), tuple(m for m in found if not WEIGHTY.match(m.name)), unknown)
