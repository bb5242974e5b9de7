"""A server of a few lines that prints SGLang's log lines and misbehaves as told: for what the emulator
does not do (processes that detach, engines that die at odd moments). Standard library only.

Usage: fake_server.py PORT [KEY=VALUE ...]
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = int(sys.argv[1])
OPTIONS = dict(item.split("=", 1) for item in sys.argv[2:])
STEP_S = float(OPTIONS.get("step", "0.02"))


def say(text: str) -> None:
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, flush=True)


def misbehave(moment: str) -> None:
    """Do what OPTIONS[moment] says."""
    action = OPTIONS.get(moment)
    if action == "hang":
        time.sleep(3600)
    elif action == "spin":
        while True:
            pass
    elif action == "trickle":
        for number in range(20):
            print(f"\rLoading shards: {number}/20", end="", flush=True)
            time.sleep(0.1)
    elif action == "sleep":
        time.sleep(0.5)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "raise":
        print('Traceback (most recent call last):\n  File "engine.py", line 7, in load', flush=True)
        print("RuntimeError: planted at " + moment, flush=True)
        sys.exit(1)
    elif action == "silent-exit":
        os._exit(3)
    elif action == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action == "no-space":
        print('Traceback (most recent call last):\n  File "log.py", line 7, in emit', flush=True)
        print("OSError: [Errno 28] No space left on device", flush=True)
        sys.exit(1)
    elif action == "detach":
        detach()
    elif action == "die-child":
        time.sleep(0.8)
        os.kill(WORKER, signal.SIGABRT)
        time.sleep(3600)
    elif action == "die-child-at-once":
        os.kill(WORKER, signal.SIGABRT)
        time.sleep(3600)


def detach() -> None:
    """A grandchild in a session of its own that keeps a copy of the environment and ignores TERM."""
    subprocess.Popen(
        [sys.executable, "-c", "import signal,time;signal.signal(15,signal.SIG_IGN);time.sleep(3600)"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def worker(title: str) -> int:
    """A child that names itself like SGLang's and sleeps; dies with its parent."""
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[45]), int(stat[46])
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(title.encode().ljust(end - start, b"\0"))
    if OPTIONS.get("term") != "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(3600)
    os._exit(0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        print(f'INFO:     127.0.0.1:1 - "{format % args}"', flush=True)

    def send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send(200, b"")
        elif self.path == "/server_info":
            self.send(
                200,
                json.dumps({"version": "0.5.15.post1", "tp_size": 1, "max_running_requests": 48}).encode(),
            )
        elif self.path == "/model_info":
            self.send(200, b'{"model_path": "fake"}')
        else:
            self.send(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        misbehave("generate")
        asked = body["sampling_params"]["max_new_tokens"]
        if OPTIONS.get("answer") == "500":
            self.send(500, b'{"error": {"message": "planted"}}')
            return
        count = asked - 2 if OPTIONS.get("answer") == "short" else asked
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number in range(1, count + 1):
            event = {"text": "x", "meta_info": {"completion_tokens": number}}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
            if number == 3:
                misbehave("stream")
        self.wfile.write(b"data: [DONE]\n\n")


if OPTIONS.get("term") == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
misbehave("spawn")
say("server_args=ServerArgs(model_path='fake')")
WORKER = worker("sglang::scheduler") if OPTIONS.get("worker", "1") == "1" else 0
time.sleep(STEP_S)
misbehave("imports")
say("Load weight begin. avail mem=139.09 GB")
time.sleep(STEP_S)
misbehave("weights")
say("Load weight end. elapsed=0.41 s, type=LlamaForCausalLM, avail mem=137.02 GB, mem usage=2.07 GB.")
time.sleep(STEP_S)
say("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1637427, K size: 24.99 GB, V size: 24.99 GB")
misbehave("kv")
say(
    "Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2], avail mem=83.27 GB"
)
time.sleep(STEP_S)
misbehave("capture")
say("Capture target decode CUDA graph end. elapsed=4.54 s, mem usage=0.04 GB, avail mem=83.23 GB.")
say("max_total_num_tokens=1753207, chunked_prefill_size=8192, max_running_requests=8, context_len=4096")
httpd = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
httpd.daemon_threads = True
print(f"INFO:     Uvicorn running on http://127.0.0.1:{PORT} (Press CTRL+C to quit)", flush=True)
misbehave("warmup")
if OPTIONS.get("ready", "1") == "1":
    say("The server is fired up and ready to roll!")
httpd.serve_forever()
