"""``tokgate serve``: run the emulated engine by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from typing import IO, Annotated

import typer

from tokgate.errors import Exited, PortTaken, UsageFault
from tokgate.host import marker, ports
from tokgate.server import reaper

app = typer.Typer(add_completion=False)

EAGLE3 = (
    "--speculative-algorithm", "EAGLE3",
    "--speculative-draft-model-path", "emulated-draft",
    "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "4",
)  # fmt: skip
PROFILES: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "baseline-eager": ("--disable-cuda-graph",),
    "eagle3-graphs": EAGLE3,
    "eagle3-eager": (*EAGLE3, "--disable-cuda-graph"),
    "eagle3-attn-decode": (*EAGLE3, "--speculative-attention-mode", "decode"),
}
STOP_S = 5.0
RUNNING = "Uvicorn running on "
READY = "The server is fired up and ready to roll!"


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def serve(
    context: typer.Context,
    scenario: Annotated[str, typer.Option(help="packaged scenario, or a .yaml file")] = "founding",
    profile: Annotated[str, typer.Option(help=f"one of: {', '.join(PROFILES)}")] = "baseline",
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one", min=0, max=65535)] = 0,
    fault: Annotated[
        list[str] | None, typer.Option(help="SPEC, may be repeated; a wrong one lists all")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--scenario-override", help="KEY=VALUE, like baseline.step_ms=13.3")
    ] = None,
    version: Annotated[str | None, typer.Option("--emulated-version", help="SGLang version to speak")] = None,
    launch_seed: Annotated[int | None, typer.Option(help="draws launch effect and run scatter")] = None,
    quiet: Annotated[bool, typer.Option(help="do not show the server's log")] = False,
) -> None:
    """Run the emulated engine: prints its URL, Ctrl-C stops it. Other options go to it, as SGLang's flags."""
    if profile not in PROFILES:
        raise UsageFault(f"no profile '{profile}' here; known: {', '.join(PROFILES)}")
    command = [sys.executable, "-m", "tokgate.emulator", "--model-path", "emulated-target"]
    command += ["--scenario", scenario, "--host", host, "--port", str(port), *PROFILES[profile]]
    for name, values in (("--fault", fault), ("--scenario-override", override)):
        for value in values or ():
            command += [name, value]
    if version is not None:
        command += ["--emulated-version", version]
    if launch_seed is not None:
        command += ["--launch-seed", str(launch_seed)]
    if port and not ports.is_free(port, host):
        raise PortTaken(f"port {port} on {host} cannot be had: {ports.holder(port)}")
    raise typer.Exit(_run([*command, *context.args], quiet))


def _run(command: list[str], quiet: bool) -> int:
    stopped = threading.Event()

    def stop(number: int, frame: object) -> None:
        # A second signal (an impatient Ctrl-C) must not get in the way of the first.
        if not stopped.is_set():
            stopped.set()
            server.send_signal(signal.SIGTERM)
            killer.start()

    # Should this process be killed, its reaper ends the server; `tokgate reap` finds it by the same mark.
    mark = uuid.uuid4().hex
    reaper.watch(mark)
    # In a group of its own, so that Ctrl-C reaches only this process, which then ends it in order.
    server = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, **marker.variables(mark)},
    )
    killer = threading.Timer(STOP_S, server.kill)
    killer.daemon = True
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert server.stderr is not None
        last = _relay(server.stderr, quiet)
        code = server.wait()
    finally:
        killer.cancel()
        if server.poll() is None:
            server.kill()
            server.wait()
        reaper.forget(mark)
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped.is_set():
        return 0
    if code == 2:
        return 2
    raise Exited(
        f"the emulated engine ended by itself (status {code})", [f"last line: {last}"], last_log_line=last
    )


def _relay(stream: IO[str], quiet: bool) -> str:
    """Copy the server's log to standard error, its URL to standard output; returns the last line."""
    url = last = ""
    for line in stream:
        last = line.rstrip() or last
        if not quiet:
            os.write(2, line.encode())
        if RUNNING in line:
            url = line.partition(RUNNING)[2].split()[0]
        if READY in line:
            print(f"serving at {url}   (Ctrl-C stops it)", flush=True)
    return last
