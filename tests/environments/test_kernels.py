"""The stand-in kernels, inside the made CPU engine."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.environments.engines import cpu_engine
from tokgate.config.engine import Engine
from tokgate.environments.recipe import KERNELS

CHECKS_FOLDER = Path(__file__).with_name("kernel_checks")
CHECKS = [
    node.name
    for module in sorted(CHECKS_FOLDER.glob("*.py"))
    for node in ast.parse(module.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(mark, ast.Name) and mark.id == "check" for mark in node.decorator_list)
]


def run(engine: Engine, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the engine's Python with the kernels of this checkout."""
    variables = {
        **os.environ,
        **engine.env,
        "PYTHONPATH": str(KERNELS),
        "PYTHONDONTWRITEBYTECODE": "1",
        **env,
    }
    return subprocess.run(
        [engine.python, *arguments], env=variables, capture_output=True, text=True, timeout=240, check=False
    )


@cache
def results() -> dict[str, str | None]:
    done = run(cpu_engine(), str(CHECKS_FOLDER))
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.cpu
@pytest.mark.parametrize("name", CHECKS)
def test_kernel(name: str) -> None:
    """See the check of that name in kernel_checks/."""
    assert results()[name] is None, results()[name]


@pytest.mark.cpu
def test_every_check_ran() -> None:
    assert CHECKS and list(results()) == CHECKS


@pytest.mark.cpu
def test_refuses_to_load_where_cuda_is_present() -> None:
    code = "import torch; torch.cuda.is_available = lambda: True; import sgl_kernel"
    done = run(cpu_engine(), "-c", code)
    assert done.returncode == 1
    assert "torch sees a CUDA device" in done.stderr


@pytest.mark.cpu
def test_refuses_to_load_outside_the_cpu_engine() -> None:
    done = run(cpu_engine(), "-c", "import sgl_kernel", SGLANG_USE_CPU_ENGINE="0")
    assert done.returncode == 1
    assert "SGLANG_USE_CPU_ENGINE is not 1" in done.stderr


@pytest.mark.cpu
def test_torchvision_loads_through_the_launcher() -> None:
    engine = cpu_engine()
    cuda = run(engine, "-c", "import torch; print(torch.version.cuda)").stdout.strip()
    if cuda == "None":
        without = run(engine, "-c", "import torchvision")
        assert "torchvision::nms does not exist" in without.stderr, (
            "this torchvision needs no launcher any more"
        )
    through = run(engine, "-c", "import launch_server, torchvision; print(torchvision.__version__)")
    assert through.returncode == 0, through.stderr
