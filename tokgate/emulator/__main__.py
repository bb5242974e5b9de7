"""``python -m tokgate.emulator``: checks its command line, then replaces itself by the light server.

The first stage needs pydantic and YAML for the scenario; the server must stay small. So the process
executes itself again, same arguments and process id, with the settings in an inherited memory file.
"""

from __future__ import annotations

import json
import os
import sys

HANDOVER = "TOKGATE_EMULATOR_SETTINGS"
# What SGLang's start (0.5.15) sets whatever it was given, and what it sets where nothing was given.
OWN = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "CUDA_MODULE_LOADING": "AUTO"}
OWN_DEFAULTS = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


def main() -> int:
    """Either stage."""
    owner, _, descriptor = os.environ.pop(HANDOVER, "").partition(":")
    if owner == str(os.getpid()):
        return _serve(int(descriptor))
    return _prepare()


def _prepare() -> int:
    from tokgate.emulator import command_line
    from tokgate.errors import UsageFault

    try:
        settings = command_line.read(sys.argv[1:])
    except UsageFault as error:
        return command_line.print_fault(error)
    descriptor = os.memfd_create("tokgate-emulator-settings", 0)
    os.write(descriptor, json.dumps(settings).encode())
    environment = {**OWN_DEFAULTS, **os.environ, **OWN, HANDOVER: f"{os.getpid()}:{descriptor}"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    raise AssertionError("unreachable")


def _serve(descriptor: int) -> int:
    from tokgate.emulator.lifecycle import Lifecycle
    from tokgate.emulator.settings import from_plain

    with os.fdopen(descriptor, "rb") as handover:
        handover.seek(0)
        settings = from_plain(json.load(handover))
    return Lifecycle(settings).run()


if __name__ == "__main__":
    sys.exit(main())
