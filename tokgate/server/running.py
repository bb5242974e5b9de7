"""A server that is ready."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tokgate.config.profiles import Profile
from tokgate.errors import Exited, Hang, HostFault
from tokgate.host import proc
from tokgate.server import faults, libraries, probe, truth, wording
from tokgate.server.group import Death, ProcessGroup
from tokgate.server.ledger import GpuLedger
from tokgate.server.oddity import odd_captures
from tokgate.server.spec import LaunchSpec
from tokgate.server.teardown import Teardown, tear_down
from tokgate.server.timeline import Capture, PhaseTime
from tokgate.sglang.http import Override, overrides


class Server:
    """One running server. A context manager: leaving it stops the server.

    Attributes:
        spec: what was launched.
        launch: identifier of the process from start to stop.
        phases: the start-up, phase by phase, seconds.
        captures: graph captures by kind and rank.
        server_info, model_info: as the server reports them; empty where it does not.
        environments: NCCL_*, CUDA_*, SGLANG_* of every worker process, by its title.
        variables: the same by variable, with who gave it.
        libraries: versions that every process has loaded, by its title.
        nccl_version: as the log gives it; ``None`` when it does not (one rank loads no NCCL).
    """

    def __init__(
        self,
        spec: LaunchSpec,
        group: ProcessGroup,
        ledger: GpuLedger,
        *,
        phases: tuple[PhaseTime, ...],
        captures: tuple[Capture, ...],
        nccl_version: str | None,
        server_info: Mapping[str, Any],
        model_info: Mapping[str, Any],
    ) -> None:
        self.spec = spec
        self.launch = group.mark
        self.phases = phases
        self.captures = captures
        self.nccl_version = nccl_version
        self.server_info = server_info
        self.model_info = model_info
        self._group = group
        self._ledger = ledger
        self._lock = threading.Lock()
        self._teardown: Teardown | None = None
        self._death: Death | None = None
        members = group.members()
        self.environments = truth.environments(members)
        self.variables = tuple(truth.variables(self.environments, spec))
        self.libraries = libraries.libraries(members)

    @property
    def profile(self) -> Profile:
        """The profile that was asked for."""
        return self.spec.profile

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.spec.host}:{self.spec.port}"

    @property
    def host(self) -> str:
        """Address on which it listens."""
        return self.spec.host

    @property
    def port(self) -> int:
        """Port on which it listens."""
        return self.spec.port

    @property
    def pid(self) -> int:
        """Process id of the server's root process."""
        return self._group.pid

    @property
    def log_path(self) -> Path:
        """The engine's output."""
        return self.spec.log_path

    @property
    def version(self) -> str | None:
        """SGLang's version as the server reports it; ``None`` when it does not."""
        value = self.server_info.get("version")
        return value if isinstance(value, str) else None

    @property
    def startup_s(self) -> float:
        """Seconds from spawn to the first real generation."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def stopped(self) -> bool:
        """Whether it was stopped or torn down."""
        return self._teardown is not None

    @property
    def odd_captures(self) -> list[str]:
        """Ranks whose graph captures differ from the others', in words."""
        return odd_captures(self.captures, ranks=self.profile.tp)

    def processes(self) -> list[proc.Process]:
        """Its living processes, oldest first."""
        return [] if self.stopped else self._group.members()

    def rss_mib(self) -> float:
        """Resident memory of all its processes, MiB (shared pages are counted once a process)."""
        return sum(proc.rss_bytes(process.pid) or 0 for process in self.processes()) / (1 << 20)

    def gpu_memory_mib(self) -> Mapping[int, int] | None:
        """Device memory that it holds now, MiB by GPU index; ``None`` where it is not known."""
        held = self._ledger.held({process.pid for process in self.processes()})
        return None if self.stopped else self._ledger.left_mib(held)

    def flush_cache(self, timeout_s: float = 10.0) -> bool:
        """Empty the prefix cache and reset the speculative counters; False when the server refuses,
        as it does while it is busy, or does not answer."""
        status, _ = probe.post(self.host, self.port, "/flush_cache", timeout_s)
        return status == 200

    def resolved(self, profile: Profile | None = None) -> list[Override]:
        """Where the server runs with something other than what the profile asked for."""
        return overrides(profile or self.profile, self.server_info)

    def ensure_alive(self, phase: str = "serving") -> None:
        """Whether every process that must live does.

        Args:
            phase: what was being done, for the message.

        Raises:
            Exited: one has died, with what its log says; everything else has been ended.
        """
        if self.stopped:
            if self._death is not None:
                raise faults.exited(self.spec, self._death, phase, 0.0)
            return
        self._group.members()
        death = self._group.death()
        if death is not None:
            self._death = death
            error = faults.exited(self.spec, death, phase, None, self._group)
            error.details += self._end(0.0).told
            raise error

    @contextmanager
    def watch(self, phase: str = "serving", on_death: Callable[[], None] | None = None) -> Iterator[None]:
        """Watch for the death of any worker while the body runs, at no cost: a thread waits on pidfds.

        Args:
            on_death: called from that thread at a death, so that a client can let go; at once, and perhaps
                twice, when it comes while the watch begins.

        Raises:
            Exited: at the end of the body, when a process has died; it takes the place of the client's
                own exception.
        """
        self.ensure_alive(phase)
        descriptors = self._group.descriptors()
        reader, writer = os.pipe()

        def wait() -> None:
            ready, _, _ = select.select([reader, *descriptors], [], [])
            if reader not in ready and on_death is not None:
                on_death()

        thread = threading.Thread(target=wait, name="tokgate-watch", daemon=True)
        thread.start()
        try:
            # One that died before its descriptor was opened has none.
            self._group.members()
            if on_death is not None and self._group.death() is not None:
                on_death()
            yield
        except Exception:
            self._settle(phase)
            raise
        else:
            self.ensure_alive(phase)
        finally:
            os.write(writer, b"x")
            thread.join()
            for descriptor in (*descriptors, reader, writer):
                os.close(descriptor)

    def hang(
        self, phase: str, waited_s: float, limit_s: float, usual_s: float | None = None
    ) -> Hang | Exited | HostFault:
        """The server made no progress while it served: collect the evidence, then end it.

        Args:
            phase: what was being done, in words: ``decode of chat-bs8``.
            waited_s: seconds without progress.
            limit_s: the deadline that passed.

        Returns:
            The error, for the caller to raise: :class:`Exited` when the silence has a dead process behind
            it.
        """
        if not self.stopped:
            self._group.members()
            self._death = self._group.death()
        if self._death is not None:
            error = faults.exited(self.spec, self._death, phase, None, self._group)
            error.details += self._end(0.0).told
            return error
        if self.stopped:
            return Hang(
                wording.no_progress(phase, waited_s, limit_s, usual_s),
                profile=self.profile.name,
                phase=phase,
                waited_s=waited_s,
                limit_s=limit_s,
                usual_s=usual_s,
                files=[self.log_path],
            )
        hang = faults.hang(self.spec, self._group, phase, phase, waited_s, limit_s, usual_s, serving=True)
        hang.details += self._end(0.0).told
        return hang

    def stop(self) -> Teardown:
        """End the server: TERM, its time to end, KILL, survivors, port and GPU memory back.

        Returns:
            How it went; the same object when it was stopped before.
        """
        return self._end(self.spec.teardown_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _settle(self, phase: str) -> None:
        # The client lost its connection: give the death that caused it a moment to show.
        for _ in range(20):
            if self.stopped:
                return
            self.ensure_alive(phase)
            self._group.wait(0.05)

    def _end(self, grace_s: float) -> Teardown:
        with self._lock:
            if self._teardown is None:
                self._teardown = tear_down(
                    self._group,
                    host=self.spec.host,
                    port=self.spec.port,
                    grace_s=grace_s,
                    ledger=self._ledger,
                    on_hang=lambda members, waited_s: faults.hang(
                        self.spec, self._group, "teardown", "teardown", waited_s, grace_s, None, serving=True
                    ),
                )
            return self._teardown
