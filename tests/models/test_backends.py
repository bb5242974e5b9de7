"""numpy and torch make the same bytes. torch is that of the CPU engine: tokgate's own environment has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.environments.engines import cpu_engine
from tokgate.errors import UsageFault
from tokgate.models import backends
from tokgate.models.backends import NumpyBackend, choose
from tokgate.models.maker import make, tensors_of

ROOT = Path(__file__).parents[2]
MAKE = """
import json, sys
from pathlib import Path
from tests.models.bfloat16_preset import add
from tokgate.models.maker import make
add()
made = {}
for preset, near_tie in (("tiny", None), ("tiny-bf16", 33)):
    made[preset] = make(preset, Path(sys.argv[1]) / preset, accept_length=2.5, near_tie=near_tie, backend="torch").files
print(json.dumps(made))
"""


@pytest.mark.cpu
@pytest.mark.slow
def test_torch_makes_the_bytes_that_numpy_makes(tmp_path, pair, bfloat16_preset):
    engine = cpu_engine()
    done = subprocess.run(
        [engine.python, "-c", MAKE, str(tmp_path / "torch")],
        cwd=ROOT,
        env={**os.environ, **engine.env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["tiny"] == pair.truth.files
    assert made["tiny-bf16"] == make("tiny-bf16", tmp_path / "numpy", accept_length=2.5, near_tie=33).files


def test_no_single_element_is_written_twice(pair):
    """Where two values met, which one stays would be up to the back-end."""
    for part in ("target", "draft"):
        for tensor in tensors_of(pair.rule, part):
            if tensor.entries is not None:
                places = list(zip(tensor.entries.rows, tensor.entries.columns, strict=True))
                assert len(set(places)) == len(places), tensor.name


def test_tokgate_itself_imports_no_torch():
    code = "import sys, tokgate.models.maker, tokgate.cli.model; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Cuda:
    def __init__(self, there):
        self.there = there

    def is_available(self):
        return self.there


@pytest.mark.parametrize(
    ("choice", "gpu", "expected"),
    [
        ("auto", True, "TorchBackend"),
        ("auto", False, "NumpyBackend"),
        ("numpy", True, "NumpyBackend"),
        ("torch", False, "TorchBackend"),
    ],
)
def test_auto_takes_torch_only_where_it_sees_a_gpu(monkeypatch, choice, gpu, expected):
    torch = type("Torch", (), {"cuda": Cuda(gpu)})
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(backends.importlib, "import_module", lambda name: torch)
    assert type(choose(choice)).__name__ == expected


def test_a_broken_torch_is_passed_over_unless_it_was_asked_for(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(backends.importlib, "import_module", broken)
    assert isinstance(choose("auto"), NumpyBackend)
    with pytest.raises(UsageFault, match="--backend torch: libcudart"):
        choose("torch")
    with pytest.raises(UsageFault, match="no back-end 'jax'"):
        choose("jax")


def test_blocks_of_any_size_give_the_same_bytes(pair):
    small, large = NumpyBackend(), NumpyBackend()
    small.block_elements, large.block_elements = 1 << 12, 1 << 24
    tensor = next(
        each for each in tensors_of(pair.rule, "target") if each.name.endswith("0.self_attn.q_proj.weight")
    )
    one, other = (b"".join(tensor.blocks(0, "target", backend)) for backend in (small, large))
    assert one == other
    assert len(np.frombuffer(one, "<f4")) == tensor.shape[0] * tensor.shape[1]
