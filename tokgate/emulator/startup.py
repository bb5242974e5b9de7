"""What a scheduler does before it serves: init, weights, KV cache, captures, with SGLang's log lines."""

from __future__ import annotations

import time
from collections.abc import Callable

from tokgate.emulator import log_lines
from tokgate.emulator.log_lines import Log
from tokgate.emulator.server_args import kv_tokens, running_limit
from tokgate.emulator.settings import Settings

FREE_GB = 139.09
TARGET_GB = 2.07
DRAFT_GB = 0.41
LOADER = "Multi-thread loading shards: "
# Recorded of 0.5.15 (old) and 0.5.23 (new); where between them it changed is not known.
NEW_INIT_WORDING = 20
DRAFT_LOG_ALL_RANKS_UNTIL = 11
LATE_RANK_S = 2.5
NCCL = "2.28.9"


class SchedulerError(RuntimeError):
    """An exception inside a scheduler, as the faults plant them."""


class Startup:
    """Start-up of one rank.

    Args:
        settings: of the server.
        rank: this scheduler's rank.
        barrier: returns once every rank has called it; collectives make ranks wait for each other.
    """

    def __init__(self, settings: Settings, rank: int, barrier: Callable[[], None]) -> None:
        self._settings = settings
        self._rank = rank
        self._barrier = barrier
        self._log = Log(rank if settings.ranks > 1 else None)
        self._times = settings.plan["startup"]
        self._free = FREE_GB
        self.graph_gb = 0.0

    @property
    def available_gb(self) -> float:
        """Imagined GPU memory still free."""
        return self._free

    def run(self) -> None:
        """Everything up to the scheduler's readiness.

        Raises:
            SchedulerError: as planted by ``start-exit``.
        """
        settings = self._settings
        self._pause("imports_s")
        self._fail("imports")
        self._distributed(0.09)
        self._weights(settings.plan["architecture"], TARGET_GB, self._times["weights_s"])
        if settings.patch >= log_lines.NEW_CAPTURE_WORDING:
            self._draft_weights()
            self._kv_cache()
            self._capture_target()
        else:
            self._kv_cache()
            self._capture_target()
            self._draft_weights()
        self._capture_drafts()
        args = settings.args
        memory = "available_cpu_mem" if args["device"] == "cpu" else "available_gpu_mem"
        if self._rank == 0:
            self._log.line(
                f"max_total_num_tokens={kv_tokens(args)}, "
                f"chunked_prefill_size={args['chunked_prefill_size']}, "
                f"max_prefill_tokens={args['max_prefill_tokens']}, "
                f"max_running_requests={running_limit(args)}, "
                f"context_len={args['context_length']}, {memory}={self._free:.2f} GB"
            )
        cache = "ChunkCache" if args["disable_radix_cache"] else "RadixCache"
        self._log.line(
            f"Tree cache initialized: source=default impl={cache} hybrid_swa=False hybrid_ssm=False "
            "hierarchical=False streaming_wrapped=False"
        )

    def _pause(self, key: str) -> None:
        time.sleep(self._times[key])

    def _fail(self, phase: str) -> None:
        if self._settings.faults.has("start-exit", phase):
            raise SchedulerError(f"planted fault: start-exit:{phase}")

    def _distributed(self, used_gb: float) -> None:
        began = time.monotonic()
        if (
            used_gb
            and self._rank == 0
            and self._settings.ranks > 1
            and self._settings.args["device"] != "cpu"
        ):
            self._log.line(f"sglang is using nccl=={NCCL}")
        if self._settings.patch >= NEW_INIT_WORDING:
            self._parallel(used_gb)
            return
        self._log.line("Init torch distributed begin.")
        self._barrier()
        elapsed = time.monotonic() - began
        self._log.line(f"Init torch distributed ends. elapsed={elapsed:.2f} s, mem usage={used_gb:.2f} GB")

    def _parallel(self, used_gb: float) -> None:
        """The newer wording; a draft model, which uses what is there, says only the second half."""
        began = time.monotonic()
        if used_gb:
            self._log.line("Init parallel begin.")
        self._barrier()
        if used_gb:
            self._log.line(f"Init parallel ends. elapsed={time.monotonic() - began:.2f} s")
        self._log.line(f"Memory baseline taken. mem usage={used_gb:.2f} GB")

    def _weights(self, name: str, size_gb: float, length_s: float) -> None:
        self._log.line(f"Load weight begin. avail mem={self._free:.2f} GB")
        if self._rank == 0:
            self._log.raw(f"\r{LOADER}  0% Completed | 0/1 [00:00<?, ?it/s]")
        began = time.monotonic()
        time.sleep(length_s)
        self._fail("weights")
        elapsed = time.monotonic() - began
        if self._rank == 0:
            self._log.raw(
                f"\r{LOADER}100% Completed | 1/1 [00:00<00:00, {1 / max(elapsed, 1e-3):5.2f}it/s]\n"
            )
        self._free -= size_gb
        self._log.line(
            f"Load weight end. elapsed={elapsed:.2f} s, type={name}, avail mem={self._free:.2f} GB, "
            f"mem usage={size_gb:.2f} GB."
        )

    def _draft_weights(self) -> None:
        if not self._settings.speculative:
            return
        self._log.line("SPECULATIVE_MOE_RUNNER_BACKEND is not initialized, using auto backend")
        self._log.line("SPECULATIVE_MOE_A2A_BACKEND is not initialized, using none backend")
        self._distributed(0.0)
        self._weights("LlamaForCausalLMEagle3", DRAFT_GB, self._times["weights_s"] / 4)

    def _kv_cache(self) -> None:
        tokens = kv_tokens(self._settings.args)
        time.sleep(self._times["kv_cache_s"] / 2)
        self._fail("kv-cache")
        for share in (1.0, 0.25) if self._settings.speculative else (1.0,):
            size = min(tokens * 15.26e-6 * share, self._free * 0.4)
            self._free -= 2 * size
            self._log.line(
                f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, "
                f"K size: {size:.2f} GB, V size: {size:.2f} GB"
            )
            self._log.line(f"Memory pool end. avail mem={self._free:.2f} GB")
        # Attention backends are set up between the cache and the captures.
        time.sleep(self._times["kv_cache_s"] / 2)

    def _capture_target(self) -> None:
        settings, args = self._settings, self._settings.args
        if args["prefill_attention_backend"] or args["decode_attention_backend"]:
            prefill = args["prefill_attention_backend"] or args["attention_backend"]
            decode = args["decode_attention_backend"] or args["attention_backend"]
            if prefill != decode:
                self._log.line(
                    "Using hybrid attention backend for decode and prefill: "
                    f"decode_backend={decode}, prefill_backend={prefill}."
                )
        self._note_prefill_graphs()
        if not args["emulated_decode_graphs"]:
            self._fail("capture")
            return
        if settings.faults.has("late-rank", f"TP{self._rank}"):
            time.sleep(LATE_RANK_S)
        if settings.speculative:
            self._capture("target verify", args["speculative_num_draft_tokens"], "capture_target_s", 0.06)
        else:
            self._capture("target decode", 1, "capture_target_s", 0.04)

    def _capture_drafts(self) -> None:
        settings = self._settings
        if not settings.speculative:
            return
        self._note_prefill_graphs()
        if not settings.args["emulated_decode_graphs"]:
            return
        if settings.args["speculative_num_steps"] > 1:
            self._capture("draft decode", 1, "capture_draft_s", 0.04)
        if settings.draft_extend_graph:
            tokens = settings.args["speculative_num_draft_tokens"]
            self._capture("draft extend", tokens, "capture_draft_extend_s", 0.08)

    def _note_prefill_graphs(self) -> None:
        args = self._settings.args
        if self._settings.patch >= log_lines.NEW_CAPTURE_WORDING:
            if args["cuda_graph_config"]["prefill"]["backend"] == "disabled":
                self._log.line(
                    "Disable prefill CUDA graph because cuda_graph_config resolved "
                    "prefill.backend='disabled' "
                    "(e.g. via --cuda-graph-backend-prefill=disabled or auto-disable rules)."
                )
        elif args.get("disable_piecewise_cuda_graph"):
            self._log.line("Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set")

    def _capture(self, kind: str, tokens_per_bs: int, key: str, used_gb: float) -> None:
        settings = self._settings
        sizes = settings.args["emulated_capture_sizes"]
        length, used = self._times[key], used_gb
        if settings.faults.has("odd-rank", f"TP{self._rank}"):
            length, used = length * 2.5 + 0.1, used * 3
        shown = settings.patch <= DRAFT_LOG_ALL_RANKS_UNTIL or self._rank == 0 or kind.startswith("target")
        began = time.monotonic()
        if shown:
            for line in log_lines.capture_begin(settings.patch, kind, sizes, tokens_per_bs, self._free):
                self._log.line(line)
        hang = settings.faults.has("capture-hang", kind.replace(" ", "-"), self._rank)
        for done, size in enumerate(reversed(sizes)):
            if self._rank == 0:
                elapsed = time.monotonic() - began
                bar = log_lines.capture_progress(done, len(sizes), size, self._free, elapsed)
                self._log.raw(bar)
            if hang and done == len(sizes) // 2:
                wait_in_capture_forever()
            time.sleep(length / len(sizes))
        self._barrier()
        elapsed = time.monotonic() - began
        self._free -= used
        self.graph_gb += used
        if self._rank == 0:
            bar = log_lines.capture_progress(len(sizes), len(sizes), sizes[0], self._free, elapsed)
            self._log.raw(f"{bar}\n")
        self._fail("capture")
        if shown:
            self._log.line(log_lines.capture_end(settings.patch, kind, elapsed, used, self._free))


def wait_in_capture_forever() -> None:
    """Where a hung capture stands; its name shows in py-spy's stacks."""
    while True:
        time.sleep(3600)
