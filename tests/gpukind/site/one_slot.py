"""The emulated engine on a GPU with memory for one server: another dies as SGLang does. ``FAKE_SLOT`` names a file."""

from __future__ import annotations

import fcntl
import os
import runpy
import sys

if "FAKE_SLOT_HELD" not in os.environ:
    slot = os.open(os.environ["FAKE_SLOT"], os.O_RDWR | os.O_CREAT)
    # The emulator starts itself anew, and its children die with it: all of them hold it.
    os.set_inheritable(slot, True)
    try:
        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("[2026-11-30 04:00:00] Scheduler hit an exception: Traceback (most recent call last):")
        print('  File "model_runner.py", line 1, in init_memory_pool')
        print("ValueError: Loaded weights leave no GPU memory for the KV cache", flush=True)
        sys.exit(1)
    os.environ["FAKE_SLOT_HELD"] = "1"
runpy.run_module("tokgate.emulator", run_name="__main__", alter_sys=True)
