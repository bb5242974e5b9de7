"""Other people's clients: installed on demand outside the repository, run on the same truth server.

Each is asked for the same load. CPU time is that of the whole process tree, and start-up is taken out by
subtracting a short run from a long one.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client_truth import TIMEOUT_S, Reading
from tokgate.errors import HostFault

SGLANG = "0.5.23"
SHORT_TOKENS = 20
# Loads the one compiled module out of SGLang's wheel, without SGLang's requirements.
_LOAD_RUST = (
    "import importlib.util, sys\n"
    "spec = importlib.util.spec_from_file_location('_bench', sys.argv[1])\n"
    "module = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(module)\n"
    "module.run_argv(['sglang-bench', *sys.argv[2:]])\n"
)


@dataclass(frozen=True, slots=True)
class Load:
    """What a peer is asked for."""

    port: int
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A client to compare with.

    Attributes:
        packages: arguments of ``pip install`` for its environment.
        command: the command line for a load, given its folder and the result file.
        read: ITL p99 and TTFT p99, ms, from its result file.
    """

    packages: tuple[str, ...]
    command: Callable[[Path, Load, Path], list[str]]
    read: Callable[[Path], tuple[float | None, float | None]]


def _sglang_options(load: Load, result: Path) -> list[str]:
    return [
        *("--backend", "sglang", "--base-url", f"http://127.0.0.1:{load.port}", "--model", "x"),
        *("--num-prompts", str(load.streams), "--max-concurrency", str(load.streams)),
        *("--dataset-name", "random-ids", "--tokenize-prompt"),
        *("--random-input-len", "3", "--random-output-len", str(load.tokens), "--random-range-ratio", "1"),
        *("--warmup-requests", "0", "--disable-tqdm", "--output-file", str(result)),
    ]


def _rust(folder: Path, load: Load, result: Path) -> list[str]:
    (module,) = map(str, folder.glob("lib/python3*/site-packages/sglang/srt/rust_extensions/_bench*.so"))
    threads = str(len(os.sched_getaffinity(0)))
    return [
        *(str(folder / "bin/python"), "-c", _LOAD_RUST, module, *_sglang_options(load, result)),
        *("--vocab-size", "8192", "--disable-retokenize", "--worker-threads", threads),
    ]


def _serving(folder: Path, load: Load, result: Path) -> list[str]:
    options = _sglang_options(load, result)
    return [
        str(folder / "bin/python"),
        "-m",
        "sglang.benchmark.serving",
        *options,
        "--tokenizer",
        str(folder / "tokenizer"),
    ]


def _read_sglang(result: Path) -> tuple[float | None, float | None]:
    found = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
    return found.get("p99_itl_ms"), found.get("p99_ttft_ms")


def _aiperf(folder: Path, load: Load, result: Path) -> list[str]:
    return [
        *(str(folder / "bin/aiperf"), "profile", "--model", "x", "--url", f"http://127.0.0.1:{load.port}"),
        *("--endpoint-type", "completions", "--streaming", "--concurrency", str(load.streams)),
        *("--request-count", str(load.streams), "--synthetic-input-tokens-mean", "3"),
        *("--extra-inputs", f"max_tokens:{load.tokens}", "--tokenizer", str(folder / "tokenizer")),
        *("--artifact-dir", str(result.parent), "--ui", "none"),
    ]


def _read_aiperf(result: Path) -> tuple[float | None, float | None]:
    (path,) = result.parent.rglob("profile_export_aiperf.json")
    found = json.loads(path.read_text(encoding="utf-8"))

    def p99(name: str) -> float | None:
        value = found.get(name, found.get("records", {}).get(name))
        return value.get("p99") if isinstance(value, dict) else None

    return p99("inter_chunk_latency"), p99("time_to_first_token")


def _guidellm(folder: Path, load: Load, result: Path) -> list[str]:
    return [
        *(str(folder / "bin/guidellm"), "benchmark", "--target", f"http://127.0.0.1:{load.port}"),
        *("--rate-type", "concurrent", "--rate", str(load.streams), "--max-requests", str(load.streams)),
        *("--data", f"prompt_tokens=8,output_tokens={load.tokens}", "--processor", str(folder / "tokenizer")),
        *("--output-path", str(result), "--disable-console-outputs"),
    ]


def _read_guidellm(result: Path) -> tuple[float | None, float | None]:
    found = json.loads(result.read_text(encoding="utf-8"))["benchmarks"][0]["metrics"]

    def p99(name: str) -> float | None:
        value = found.get(name, {}).get("successful", {}).get("percentiles", {}).get("p99")
        return float(value) if value is not None else None

    return p99("inter_token_latency_ms"), p99("time_to_first_token_ms")


PEERS: Mapping[str, Peer] = {
    "sglang-bench": Peer(("--no-deps", f"sglang=={SGLANG}"), _rust, _read_sglang),
    "bench_serving": Peer((f"sglang=={SGLANG}",), _serving, _read_sglang),
    "aiperf": Peer(("aiperf",), _aiperf, _read_aiperf),
    "guidellm": Peer(("guidellm",), _guidellm, _read_guidellm),
}


def install(name: str, folder: Path) -> None:
    """Make an environment for one peer in ``folder/NAME``.

    Raises:
        HostFault: it does not install; with pip's last lines.
    """
    target = folder / name
    venv.create(target, with_pip=True, clear=True)
    command = [str(target / "bin/python"), "-m", "pip", "install", "--quiet", *PEERS[name].packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostFault(f"peer {name} does not install", done.stderr.splitlines()[-5:])
    _write_tokenizer(target / "tokenizer")


def _write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges, for peers that want one: one token a byte, any text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    # Byte-level tokenizers write the other bytes as the characters from 256 on, in order.
    others = (byte for byte in range(256) if byte not in printable)
    characters = [chr(byte) for byte in printable] + [chr(256 + i) for i, _ in enumerate(others)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {c: i for i, c in enumerate(characters)}, "merges": []}
    tokenizer: dict[str, object] = {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None},
        **{"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1_000_000}
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def installed(name: str, folder: Path | None) -> bool:
    """Whether the peer has an environment there."""
    return folder is not None and (folder / name / "bin/python").exists()


def run(name: str, folder: Path, load: Load, cpus: Sequence[int]) -> Reading:
    """Measure with a peer, once with all tokens and once with few.

    Raises:
        HostFault: it fails; with its last lines.
    """
    short_s, _ = _once(name, folder, Load(load.port, load.streams, SHORT_TOKENS), cpus)
    long_s, (itl_ms, ttft_ms) = _once(name, folder, load, cpus)
    chunks = load.streams * (load.tokens - SHORT_TOKENS)
    return Reading((long_s - short_s) / chunks * 1e6, itl_ms, ttft_ms)


def _once(
    name: str, folder: Path, load: Load, cpus: Sequence[int]
) -> tuple[float, tuple[float | None, float | None]]:
    peer = PEERS[name]
    with tempfile.TemporaryDirectory(prefix="tokgate-peer-") as temporary:
        result = Path(temporary) / "result.json"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            peer.command(folder / name, load, result),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode or not any(Path(temporary).iterdir()):
            lines = (done.stderr or done.stdout).splitlines()[-5:]
            raise HostFault(f"peer {name} failed with exit code {done.returncode}", lines)
        spent_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return spent_s, peer.read(result)
