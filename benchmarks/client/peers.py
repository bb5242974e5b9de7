"""Other people's clients on the same truth server.

SGLang's two are run out of an environment that has SGLang (``tokgate env make cpu`` makes one); AIPerf and GuideLLM
are installed on demand outside the repository. Each is asked for the same load. CPU time is that of the whole
process tree, and start-up is taken out by subtracting a short run from a long one.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client.truth import Reading
from benchmarks.serving.peer import Driver
from tokgate import environments
from tokgate.config.engine import Engine, load_engine
from tokgate.errors import HostFault

SHORT_TOKENS = 20
PATIENCE_S = 300
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
class Places:
    """Where peers are.

    Attributes:
        folder: holds an environment a peer, by its name; ``None`` for none.
        sglang: an engine whose environment has SGLang; ``None`` for none.
    """

    folder: Path | None
    sglang: Engine | None

    @classmethod
    def find(cls, folder: Path | None, engine_file: Path | None) -> Places:
        """Look where ``tokgate env make cpu`` puts SGLang, unless told where else."""
        made = engine_file or environments.root() / "cpu" / "engine.yaml"
        return cls(folder, load_engine(made) if engine_file is not None or made.is_file() else None)

    def python(self, name: str) -> Path | None:
        """The interpreter of a peer's environment, ``None`` where it is not installed."""
        if PEERS[name].packages:
            found = self.folder / name / "bin" / "python" if self.folder is not None else None
        else:
            found = Path(self.sglang.python) if self.sglang is not None else None
        if found is None or not found.exists() or (name == "sglang-bench" and _module(found) is None):
            return None
        return found

    def version(self, name: str) -> str:
        """The peer's version."""
        code = f"from importlib.metadata import version; print(version({PEERS[name].distribution!r}))"
        command = [str(self.python(name)), "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@dataclass(frozen=True, slots=True)
class Peer:
    """A client to compare with.

    Attributes:
        distribution: its name in the registry.
        packages: arguments of ``pip install`` for an environment of its own; empty where SGLang's is used.
        command: the command line for a load, given its interpreter and the result file.
        read: ITL p99 and TTFT p99, ms, from its result file.
    """

    distribution: str
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


def _module(python: Path) -> Path | None:
    """The compiled client in SGLang's wheel (0.5.22 and later)."""
    pattern = "lib/python3*/site-packages/sglang/srt/rust_extensions/_bench*.so"
    return next(python.parents[1].glob(pattern), None)


def _rust(python: Path, load: Load, result: Path) -> list[str]:
    threads = str(len(os.sched_getaffinity(0)))
    return [
        *(str(python), "-c", _LOAD_RUST, str(_module(python)), *_sglang_options(load, result)),
        *("--vocab-size", "8192", "--disable-retokenize", "--worker-threads", threads),
    ]


def _serving(python: Path, load: Load, result: Path) -> list[str]:
    _write_tokenizer(result.parent / "tokenizer")
    return [*_sglang_options(load, result)[:-2], "--tokenizer", str(result.parent / "tokenizer")]


def _read_sglang(result: Path) -> tuple[float | None, float | None]:
    found = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
    return found.get("p99_itl_ms"), found.get("p99_ttft_ms")


def _aiperf(python: Path, load: Load, result: Path) -> list[str]:
    _write_tokenizer(result.parent / "tokenizer")
    return [
        *(str(python.with_name("aiperf")), "profile", "--model", "x"),
        *("--url", f"http://127.0.0.1:{load.port}", "--endpoint-type", "completions", "--streaming"),
        *("--concurrency", str(load.streams), "--request-count", str(load.streams)),
        *("--synthetic-input-tokens-mean", "3", "--extra-inputs", f"max_tokens:{load.tokens}"),
        *("--tokenizer", str(result.parent / "tokenizer")),
        *("--artifact-dir", str(result.parent), "--ui", "none"),
    ]


def _read_aiperf(result: Path) -> tuple[float | None, float | None]:
    (path,) = result.parent.rglob("profile_export_aiperf.json")
    found = json.loads(path.read_text(encoding="utf-8"))

    def p99(name: str) -> float | None:
        value = found.get(name, found.get("records", {}).get(name))
        return value.get("p99") if isinstance(value, dict) else None

    return p99("inter_chunk_latency"), p99("time_to_first_token")


def _guidellm(python: Path, load: Load, result: Path) -> list[str]:
    _write_tokenizer(result.parent / "tokenizer")
    target = f"target=http://127.0.0.1:{load.port},model=x,request_format=/v1/completions"
    return [
        *(str(python.with_name("guidellm")), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,{target}", "--profile", f"kind=concurrent,streams={load.streams}"),
        *("--constraint", f"kind=max_requests,count={load.streams}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={load.tokens}"),
        *("--tokenizer", f"kind=huggingface_auto,model={result.parent / 'tokenizer'}"),
        *("--output", f"kind=json,path={result}"),
    ]


def _read_guidellm(result: Path) -> tuple[float | None, float | None]:
    found = json.loads(result.read_text(encoding="utf-8"))["benchmarks"][0]["metrics"]

    def p99(name: str) -> float | None:
        value = found.get(name, {}).get("successful", {}).get("percentiles", {}).get("p99")
        return float(value) if value is not None else None

    return p99("inter_token_latency_ms"), p99("time_to_first_token_ms")


PEERS: Mapping[str, Peer] = {
    "sglang-bench": Peer("sglang", (), _rust, _read_sglang),
    "bench_serving": Peer("sglang", (), _serving, _read_sglang),
    "aiperf": Peer("aiperf", ("aiperf",), _aiperf, _read_aiperf),
    "guidellm": Peer("guidellm", ("guidellm",), _guidellm, _read_guidellm),
}


def install(name: str, folder: Path) -> None:
    """Make an environment for one peer in ``folder/NAME``.

    Raises:
        HostFault: it does not install, with pip's last lines; or it comes with SGLang.
    """
    if not PEERS[name].packages:
        raise HostFault(
            f"{name} comes with SGLang", ["tokgate env make cpu, or name an engine file: --sglang"]
        )
    target = folder / name
    venv.create(target, with_pip=True, clear=True)
    command = [str(target / "bin/python"), "-m", "pip", "install", "--quiet", *PEERS[name].packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostFault(f"peer {name} does not install", done.stderr.splitlines()[-5:])


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


def run(name: str, places: Places, load: Load, cpus: Sequence[int]) -> Reading:
    """Measure with a peer, once with all tokens and once with few.

    Args:
        name: one that is installed.
        cpus: to which it is bound.

    Raises:
        HostFault: it fails; with its last lines.
    """
    short = Load(load.port, load.streams, SHORT_TOKENS)
    with tempfile.TemporaryDirectory(prefix="tokgate-peer-") as folder:
        if name == "bench_serving":
            assert places.sglang is not None
            driver = Driver(places.sglang, Path(folder), cpus)
            try:
                driver.ready(PATIENCE_S)
                short_s, _ = _driven(driver, places, short, Path(folder) / "short")
                long_s, found = _driven(driver, places, load, Path(folder) / "long")
            finally:
                driver.close()
        else:
            short_s, _ = _program(name, places, short, Path(folder) / "short", cpus)
            long_s, found = _program(name, places, load, Path(folder) / "long", cpus)
    chunks = load.streams * (load.tokens - SHORT_TOKENS)
    # Start-up scatters by a second or two: what is less than nothing is not known.
    return Reading((long_s - short_s) / chunks * 1e6 if long_s > short_s else None, *found)


Found = tuple[float, tuple[float | None, float | None]]


def _driven(driver: Driver, places: Places, load: Load, folder: Path) -> Found:
    """One run of bench_serving in a process that has imported SGLang before."""
    folder.mkdir()
    python = places.python("bench_serving")
    assert python is not None
    found = driver.run(PEERS["bench_serving"].command(python, load, folder / "result.json"), PATIENCE_S)

    def number(key: str) -> float | None:
        value = found.get(key)
        return float(value) if isinstance(value, (int, float)) else None

    return number("cpu_s") or 0.0, (number("p99_itl_ms"), number("p99_ttft_ms"))


def _program(name: str, places: Places, load: Load, folder: Path, cpus: Sequence[int]) -> Found:
    """One run of a program."""
    peer, python, result = PEERS[name], places.python(name), folder / "result.json"
    assert python is not None
    folder.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        peer.command(python, load, result),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    ) as process:
        try:
            output, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            # Its workers too: they are of its session.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise HostFault(f"peer {name} did not end within {PATIENCE_S} s") from None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode or not any(path.is_file() for path in folder.iterdir()):
        raise HostFault(f"peer {name} failed with exit code {process.returncode}", output.splitlines()[-5:])
    spent_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return spent_s, peer.read(result)
