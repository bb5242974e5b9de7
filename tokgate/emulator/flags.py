"""SGLang's command-line flags, 0.5.9 to 0.5.23, as far as a gate sends them.

The table says from which release and up to which one a flag exists, so that a flag of the wrong era
fails here as it fails there: argparse prints usage and exits 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokgate.emulator.version import release_of

Release = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: without the dashes.
        kind: ``str``, ``int``, ``float`` or ``ints`` (one or more); ``None`` for a switch.
        default: as `/server_info` shows it when the flag is not given.
        since, until: first and last patch release of 0.5 that knows it.
        deprecated: releases in which using it prints a notice, and the replacement named there.
        attribute: name in ServerArgs, where it is not the flag's own.
    """

    name: str
    kind: str | None = None
    default: Any = None
    since: int = 0
    until: int = 10**6
    deprecated: tuple[int, int, str] | None = None
    attribute: str = ""

    @property
    def key(self) -> str:
        """Attribute name in SGLang's ServerArgs."""
        return self.attribute or self.name.replace("-", "_")


def _switch(name: str, **limits: Any) -> Flag:
    return Flag(name, None, False, **limits)


BACKENDS = "--cuda-graph-backend-{decode,prefill}=disabled"
FLAGS: tuple[Flag, ...] = (
    Flag("model-path", "str"),
    Flag("tokenizer-path", "str"),
    Flag("tokenizer-mode", "str", "auto"),
    Flag("load-format", "str", "auto"),
    Flag("served-model-name", "str"),
    Flag("revision", "str"),
    Flag("chat-template", "str"),
    Flag("host", "str", "127.0.0.1"),
    Flag("port", "int", 30000),
    Flag("dtype", "str", "auto"),
    Flag("quantization", "str"),
    Flag("kv-cache-dtype", "str", "auto"),
    Flag("context-length", "int"),
    Flag("device", "str", "cuda"),
    Flag("tp-size", "int", 1),
    Flag("pp-size", "int", 1),
    Flag("dp-size", "int", 1),
    Flag("ep-size", "int", 1),
    Flag("base-gpu-id", "int", 0),
    Flag("nccl-port", "int"),
    Flag("dist-init-addr", "str"),
    Flag("mem-fraction-static", "float"),
    Flag("max-running-requests", "int"),
    Flag("max-queued-requests", "int"),
    Flag("max-total-tokens", "int"),
    Flag("max-prefill-tokens", "int", 16384),
    Flag("chunked-prefill-size", "int", 8192),
    Flag("page-size", "int", 1),
    Flag("schedule-policy", "str", "fcfs"),
    Flag("schedule-conservativeness", "float", 1.0),
    Flag("random-seed", "int"),
    Flag("watchdog-timeout", "float", 300),
    Flag("soft-watchdog-timeout", "float", since=7),
    Flag("stream-interval", "int", 1),
    Flag("decode-log-interval", "int", 40),
    Flag("num-continuous-decode-steps", "int", 1),
    Flag("log-level", "str", "info"),
    Flag("log-level-http", "str"),
    Flag("attention-backend", "str"),
    Flag("prefill-attention-backend", "str"),
    Flag("decode-attention-backend", "str"),
    Flag("sampling-backend", "str", "flashinfer"),
    Flag("grammar-backend", "str", "xgrammar"),
    Flag("moe-runner-backend", "str", "auto"),
    Flag("fp8-gemm-backend", "str", "auto", attribute="fp8_gemm_runner_backend"),
    Flag("speculative-algorithm", "str"),
    Flag("speculative-draft-model-path", "str"),
    Flag("speculative-draft-model-revision", "str"),
    Flag("speculative-draft-load-format", "str"),
    Flag("speculative-num-steps", "int"),
    Flag("speculative-eagle-topk", "int"),
    Flag("speculative-num-draft-tokens", "int"),
    Flag("speculative-accept-threshold-single", "float", 1.0),
    Flag("speculative-accept-threshold-acc", "float", 1.0),
    Flag("speculative-token-map", "str"),
    Flag("speculative-attention-mode", "str", "prefill"),
    Flag("speculative-draft-attention-backend", "str"),
    Flag("speculative-draft-model-quantization", "str"),
    Flag("cuda-graph-max-bs", "int", until=19, deprecated=(14, 19, "--cuda-graph-max-bs-decode")),
    Flag("cuda-graph-bs", "ints", until=19, deprecated=(14, 19, "--cuda-graph-bs-decode")),
    Flag("cuda-graph-max-bs-decode", "int", since=14),
    Flag("cuda-graph-max-bs-prefill", "int", since=14),
    Flag("cuda-graph-bs-decode", "ints", since=14),
    Flag("cuda-graph-bs-prefill", "ints", since=14),
    Flag("cuda-graph-backend-decode", "str", since=14),
    Flag("cuda-graph-backend-prefill", "str", since=14),
    _switch("sleep-on-idle"),
    _switch("disable-cuda-graph", deprecated=(14, 10**6, BACKENDS)),
    _switch("disable-decode-cuda-graph", since=14),
    _switch("disable-prefill-cuda-graph", since=14),
    _switch("enable-piecewise-cuda-graph", until=13),
    _switch("disable-piecewise-cuda-graph", since=10, until=19),
    _switch("disable-cuda-graph-padding"),
    _switch("enable-profile-cuda-graph"),
    _switch("disable-radix-cache"),
    _switch("disable-overlap-schedule"),
    _switch("disable-custom-all-reduce"),
    _switch("disable-flashinfer-autotune"),
    _switch("enable-mixed-chunk"),
    _switch("enable-metrics"),
    _switch("enable-torch-compile"),
    _switch("enable-deterministic-inference"),
    _switch("enable-cache-report"),
    _switch("enable-nccl-nvls"),
    _switch("enable-symm-mem"),
    _switch("skip-server-warmup"),
    _switch("skip-tokenizer-init"),
    _switch("trust-remote-code"),
    _switch("log-requests"),
    _switch("enable-memory-saver"),
)
ALIASES = {"tp-size": ("--tp", "--tensor-parallel-size"), "model-path": ("--model",)}
KINDS = {"str": str, "int": int, "float": float, "ints": int}


class FlagFault(Exception):
    """A value that SGLang refuses after parsing."""


def parse(arguments: Sequence[str], version: str) -> tuple[dict[str, Any], list[str]]:
    """SGLang's arguments as its argparse would take them.

    Returns:
        Values by ServerArgs name, and the notices to print about deprecated flags.

    Raises:
        SystemExit: code 2, usage printed, as argparse does.
    """
    patch = release_of(version)[2]
    parser = argparse.ArgumentParser(prog="launch_server.py")
    known = [flag for flag in FLAGS if flag.since <= patch <= flag.until]
    for flag in known:
        names = [f"--{flag.name}", *ALIASES.get(flag.name, ())]
        required = flag.name == "model-path"
        if flag.kind is None:
            parser.add_argument(*names, dest=flag.key, action="store_true")
        elif flag.kind == "ints":
            parser.add_argument(*names, dest=flag.key, type=int, nargs="+")
        else:
            parser.add_argument(
                *names, dest=flag.key, type=KINDS[flag.kind], default=flag.default, required=required
            )
    values = vars(parser.parse_args(list(arguments)))
    notices = []
    for flag in known:
        if flag.deprecated and values[flag.key] and flag.deprecated[0] <= patch <= flag.deprecated[1]:
            notices.append(
                f"\x1b[1;33m'--{flag.name}' is deprecated and will be removed in a future release. "
                f"Use '{flag.deprecated[2]}' instead.\x1b[0m"
            )
    return values, notices


def format_json(values: dict[str, Any]) -> str:
    """Compact JSON, for handing the values on."""
    return json.dumps(values, separators=(",", ":"))


def complain(message: str) -> int:
    """Print an argparse-like error and return its exit code."""
    print(f"launch_server.py: error: {message}", file=sys.stderr)
    return 2
