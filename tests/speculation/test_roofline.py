"""The floor of a step: bytes from a model's headers, bandwidth from a copy, and what is said where there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tokgate.analysis.roofline import roofline
from tokgate.cli import run
from tokgate.config.engine import Engine
from tokgate.models import maker
from tokgate.models.traffic import Traffic, traffic
from tokgate.report.explain_trace import roofline_line
from tokgate.server.bandwidth import measure_bandwidth

TRACE = Path(__file__).parents[1] / "assets/traces/0.5.15.post1-hyb-decode-c1.trace.json.gz"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair") / "tiny"
    maker.ensure("tiny", folder, accept_length=2.5)
    return folder / "target"


def changed(target: Path, tmp_path: Path, **values: object) -> Path:
    """A copy whose configuration says something else; the weights are the same files."""
    copy = tmp_path / "target"
    copy.mkdir()
    for path in target.iterdir():
        (copy / path.name).symlink_to(path)
    config = json.loads((target / "config.json").read_text()) | values
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_weights_are_all_tensors_but_the_embedding(target: Path, tmp_path: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    read = traffic(target)
    assert isinstance(read, Traffic)
    size = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    width = {"float32": 4, "bfloat16": 2}[config["torch_dtype"]]
    embedding = config["vocab_size"] * config["hidden_size"] * width
    assert read.weights_bytes == pytest.approx(size - embedding, rel=0.01)
    assert read.kv_bytes_per_token == (
        2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * width
    )
    # Where the output head is the embedding, it is read whole.
    tied = traffic(changed(target, tmp_path, tie_word_embeddings=True))
    assert isinstance(tied, Traffic)
    assert tied.weights_bytes == read.weights_bytes + embedding
    halves = traffic(target, 2)
    assert isinstance(halves, Traffic)
    assert halves.weights_bytes == read.weights_bytes // 2


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"num_experts": 8}, "mixture of experts"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"torch_dtype": "int4"}, "lacks what the size of keys and values follows from"),
    ],
)
def test_what_cannot_be_said_is_said(
    target: Path, tmp_path: Path, values: dict[str, object], why: str
) -> None:
    found = traffic(changed(target, tmp_path, **values))
    assert isinstance(found, str)
    assert why in found


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    assert "cannot be read" in str(traffic(tmp_path))


def test_the_floor() -> None:
    """16 GB at 4 TB/s are 4 ms; a step of 5 ms makes use of 80 % of the bandwidth."""
    held = roofline(
        Traffic(15_000_000_000, 100_000),
        step_ms=5.0,
        context_tokens=1250,
        requests=8,
        bandwidth_bytes_s=4e12,
    )
    assert held.floor_ms == pytest.approx(4.0)
    assert held.above == pytest.approx(1.25)
    assert roofline_line(held, "verify") == (
        "verify 5.00 ms is 1.2 times the floor of 4.00 ms (15.00 GB of weights and 1.00 GB of keys and values a step "
        "at 4000 GB/s): 80 % of the memory's bandwidth"
    )


def engine(python: str, *paths: Path) -> Engine:
    return Engine(name="cpu", kind="cpu", version="0.5.23", python=python, pythonpath=tuple(map(str, paths)))


def test_bandwidth_is_measured_in_the_engines_python(tmp_path: Path) -> None:
    """With a torch whose copies take 10 ms: ten of them read and write 2.7 GB in 0.1 s."""
    (tmp_path / "torch.py").write_text(
        "import time\n"
        "float32 = None\n"
        "class _Tensor:\n"
        "    def copy_(self, other):\n"
        "        time.sleep(0.01)\n"
        "def ones(size, dtype=None, device=None):\n"
        "    return _Tensor()\n"
        "def empty_like(other):\n"
        "    return _Tensor()\n"
    )
    found = measure_bandwidth(engine(sys.executable, tmp_path))
    assert found.bytes_s is not None
    # A loaded machine sleeps longer, never shorter.
    assert 1e9 < found.bytes_s <= 2 * (1 << 27) / 0.01


def test_bandwidth_that_cannot_be_measured_is_told(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no kernel image')\n")
    assert "no kernel image" in measure_bandwidth(engine(sys.executable, tmp_path)).why
    assert "cannot be run" in measure_bandwidth(engine(str(tmp_path / "nothing"))).why
    emulated = Engine(name="emulated", kind="emulated", version="0.5.15.post1")
    assert measure_bandwidth(emulated).bytes_s is None


def test_explain_gives_the_floor(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(TRACE), "--target", str(target), "--bandwidth-gb-s", "4000"]) == 0
    assert "  roofline   verify 1.40 ms is " in capsys.readouterr().out
    unreadable = tmp_path / "unreadable"
    unreadable.mkdir()
    (unreadable / "config.json").write_text("{}")
    assert run(["explain", str(TRACE), "--target", str(unreadable), "--bandwidth-gb-s", "4000"]) == 0
    assert "  roofline   not known: " in capsys.readouterr().out
    for wrong in (
        ["--target", str(target)],
        ["--target", str(target.parent), "--bandwidth-gb-s", "4000"],
        ["--bandwidth-gb-s", "0", "--target", str(target)],
        ["--effective-cycle-ms", "-1"],
        ["--context-tokens", "-1"],
    ):
        assert run(["explain", str(TRACE), *wrong]) == 2
    log = Path(__file__).parents[1] / "sglang/samples/0.5.15.post1/baseline-graphs.log"
    assert run(["explain", str(log), "--effective-cycle-ms", "3"]) == 2
    assert "none was given" in capsys.readouterr().err
