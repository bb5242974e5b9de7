"""The parent process: starts the children, serves HTTP, and ends the way SGLang ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from tokgate.emulator import processes
from tokgate.emulator.channel import Channel, pair
from tokgate.emulator.children import run_detokenizer, run_follower, run_leader, scheduler_title
from tokgate.emulator.counters import Counters
from tokgate.emulator.log_lines import Log
from tokgate.emulator.settings import Settings

DETOKENIZER_TITLE = "sglang::detokenizer"
SURVIVOR_S = 300.0
WARMUP_PROMPT = [10, 11, 12, 13, 14, 15]
WARMUP_TOKENS = 8
LAUNCH_NOTICE = (
    "UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended "
    "entrypoint.\n  Example: sglang serve --model-path <model> [options]\n  warnings.warn(\n"
)


class Lifecycle:
    """One server, from start to end.

    Args:
        settings: of the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = Log()
        self._schedulers: dict[int, int] = {}
        self._children: dict[int, str] = {}
        self._serving = False
        self._draining = False
        self._counters = Counters()

    def run(self) -> int:
        """Until the server ends. Returns an exit code, where it does not end by a signal as SGLang does."""
        settings = self._settings
        self._announce()
        if settings.faults.has("start-exit", "spawn"):
            raise RuntimeError("planted fault: start-exit:spawn")
        if "teardown-hang" in settings.faults:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Before the first child exists: one that dies at once must be noticed.
        signal.signal(signal.SIGQUIT, lambda number, frame: self._on_sigquit())
        scheduler, detokenizer = self._fork_children()
        signal.signal(signal.SIGCHLD, lambda number, frame: self._reap())
        self._reap()
        return self._serve(scheduler, detokenizer)

    def _announce(self) -> None:
        settings, log = self._settings, self._log
        log.raw(f"{Path(__file__).resolve()}:1: {LAUNCH_NOTICE}")
        for notice in settings.notices:
            if settings.patch >= 20:
                log.line(notice)
            else:
                log.raw(f"{notice}\n")
        time.sleep(settings.plan["startup"]["spawn_s"])
        shown = {k: v for k, v in settings.args.items() if not k.startswith("emulated_")}
        reset = shown.pop("running_requests_reset", False)
        if reset:
            log.line(
                "Max running requests is reset to 48 for speculative decoding. "
                "You can override this by explicitly setting --max-running-requests."
            )
        text = repr(shown)
        if settings.patch < 20:
            text = "ServerArgs(" + ", ".join(f"{k}={v!r}" for k, v in shown.items()) + ")"
        log.line(f"server_args={text}")
        log.line("No chat template found, defaulting to 'string' content format")

    def _fork_children(self) -> tuple[Channel, Channel]:
        """Start all children; returns the parent's ends: to rank 0, and from the detokenizer."""
        settings = self._settings
        front, scheduler = pair()
        out, detokenizer = pair()
        text, listener = pair()
        links = [pair() for _ in range(settings.ranks - 1)]
        stubborn = "teardown-hang" in settings.faults
        everything = [
            front,
            scheduler,
            out,
            detokenizer,
            text,
            listener,
            *(end for link in links for end in link),
        ]

        def keep(*wanted: Channel) -> None:
            """Close the ends that are another process's, or no death would ever be noticed."""
            for end in everything:
                if end not in wanted:
                    end.sock.close()

        def detokenizer_body() -> int:
            keep(detokenizer, text)
            return run_detokenizer(settings, detokenizer, text)

        def leader_body() -> int:
            own = [link[0] for link in links]
            keep(scheduler, out, *own)
            return run_leader(settings, scheduler, out, own, self._counters)

        for rank in range(settings.ranks):

            def follower_body(rank: int = rank) -> int:
                keep(links[rank - 1][1])
                return run_follower(settings, rank, links[rank - 1][1])

            body = follower_body if rank else leader_body
            pid = processes.fork(scheduler_title(settings, rank), body, stubborn=stubborn)
            self._schedulers[pid] = rank
            self._children[pid] = f"scheduler_{rank}"
        pid = processes.fork(DETOKENIZER_TITLE, detokenizer_body, stubborn=stubborn)
        self._children[pid] = "detokenizer"
        keep(front, listener)
        return front, listener

    # --- serving --------------------------------------------------------------------------------

    def _serve(self, scheduler: Channel, detokenizer: Channel) -> int:
        # Imported after forking: the children need none of it.
        import selectors

        from tokgate.emulator.front import Front
        from tokgate.emulator.http import Loop
        from tokgate.emulator.routes import Routes

        self._loop = loop = Loop()
        self._front = front = Front(self._settings, loop, scheduler, detokenizer, self._counters)
        self._routes = Routes(front, self._log)
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        loop.watch(wake_read, selectors.EVENT_READ, lambda mask: _drain(wake_read))
        front.on_ready = self._open
        loop.run()
        return 0

    def _open(self) -> None:
        """The scheduler is up: listen, warm up, announce."""
        from tokgate.emulator.http import Server

        args, log = self._settings.args, self._log
        log.line(f"INFO:     Started server process [{os.getpid()}]")
        log.line("INFO:     Waiting for application startup.")
        log.line("INFO:     Application startup complete.")
        family = socket.AF_INET6 if ":" in args["host"] else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((args["host"], args["port"]))
        except OSError as error:
            log.line(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
                f"('{args['host']}', {args['port']}): {str(error.strerror).lower()}"
            )
            self._end_tree()
        port = listener.getsockname()[1]
        Server(self._loop, listener, self._routes.handle, self._routes.answered)
        shown = f"[{args['host']}]" if ":" in args["host"] else args["host"]
        log.line(f"INFO:     Uvicorn running on http://{shown}:{port} (Press CTRL+C to quit)")
        self._serving = True
        if "teardown-hang" not in self._settings.faults:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, frame: self._on_sigterm())
        if "survivor" in self._settings.faults:
            self._leave_survivor(listener)
        if args["skip_server_warmup"]:
            self._ready()
        else:
            self._warm_up()

    def _warm_up(self) -> None:
        if self._settings.faults.has("start-exit", "warmup"):
            self._log.line("Initialization failed. warmup error: planted fault: start-exit:warmup")
            self._end_tree()
        client = f"{self._settings.args['host']}:0"
        self._log.line(f'INFO:     {client} - "GET /model_info HTTP/1.1" 200 OK')

        def arrived(generation: Any) -> None:
            if generation.finish is not None:
                self._log.line(f'INFO:     {client} - "POST /generate HTTP/1.1" 200 OK')
                self._ready()

        self._front.submit(WARMUP_PROMPT, WARMUP_TOKENS, arrived, kind="warmup")

    def _ready(self) -> None:
        self._front.serving = True
        self._log.line("The server is fired up and ready to roll!")

    def _leave_survivor(self, listener: socket.socket) -> None:
        """A grandchild in a session of its own that keeps the port, or only the log file, open."""
        holds_port = self._settings.faults.has("survivor", "port")
        settled_read, settled_write = os.pipe()
        if os.fork():
            os.close(settled_write)
            # Not waitpid: `_reap` takes the child between the two. The pipe ends once the grandchild is as asked.
            os.read(settled_read, 1)
            os.close(settled_read)
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        processes.set_title(scheduler_title(self._settings, 0))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        if holds_port:
            null = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(null, standard)
        else:
            listener.close()
        os.close(settled_read)
        os.close(settled_write)
        time.sleep(SURVIVOR_S)
        os._exit(0)

    # --- ending ---------------------------------------------------------------------------------

    def _reap(self) -> None:
        """A child died. The detokenizer's death goes unnoticed, as SGLang's half-dead servers show."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._children.pop(pid, "")
            if pid not in self._schedulers or "abort" in self._settings.faults:
                continue
            code = os.waitstatus_to_exitcode(status)
            self._log.line(
                f"Subprocess {name} (pid={pid}) crashed with exit code {code}. "
                "Triggering SIGQUIT for cleanup..."
            )
            self._cleanup()

    def _on_sigquit(self) -> None:
        if not self._serving:
            self._log.line("Received sigquit from a child process. It usually means the child failed.")
            self._end_tree()
        self._cleanup()

    def _cleanup(self) -> None:
        self._log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        self._log.line("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(self._settings.plan["http"]["settle_s"])
        self._log.line("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        self._end_tree()

    def _on_sigterm(self) -> None:
        if self._draining:
            return
        self._draining = True
        self._log.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self._loop.after(0.0, self._drain)

    def _drain(self) -> None:
        # Without limit, as in SGLang: a request that never ends keeps the server.
        if self._front.active:
            self._loop.after(0.05, self._drain)
            return
        self._end_tree()

    def _end_tree(self) -> None:
        """Kill the children, then this process, as SGLang's kill_process_tree does."""
        pid = os.getpid()
        self._log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
        os.kill(pid, signal.SIGKILL)


def _drain(sock: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while sock.recv(4096):
            pass
