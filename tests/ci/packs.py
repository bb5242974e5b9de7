"""Small wheels to pack, and what tests of packs look at."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import subprocess
import zipfile
from pathlib import Path

from tokgate.config.engine import load_engine

PIECE = 3000
PYTEST = importlib.metadata.version("pytest")
NOISE = hashlib.shake_128(b"noise").hexdigest(20_000)  # does not compress much


def silent(_: str) -> None:
    """Takes what is said."""


def wheel(folder: Path, name: str, version: str, files: dict[str, str], *requires: str) -> None:
    """A wheel of these files."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    every = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},"
        f"{len(text.encode())}\n"
        for path, text in every.items()
    )
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as output:
        for path, text in {**every, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            output.writestr(path, text)


def fill(folder: Path) -> None:
    """sglang in two versions that share a large file, with a kernel, a .pth and what the runner has."""
    for version, answer in (("0.5.13", "13"), ("0.5.15", "15")):
        files = {"sglang/__init__.py": f"ANSWER = {answer}\n", "sglang/same.txt": NOISE}
        files |= {"sglang/old.py": ""} if version == "0.5.13" else {"sglang/new.py": ""}
        wheel(folder, "sglang", version, files, "kernel", "datasets", f"pytest=={PYTEST}")
    inner = {"dsl/inner/deep_module.py": "DEPTH = 2\n", "dsl.pth": "# a comment\ndsl/inner\nimport os\n"}
    wheel(folder, "kernel", "2.0", {"kernel_big/flash.so": NOISE, "kernel.py": "K = 1\n", **inner})
    wheel(folder, "datasets", "1.0", {"datasets.py": ""})
    wheel(folder, "pytest", PYTEST, {"pytest.py": ""})


def run_in(engine_file: Path, code: str) -> str:
    engine = load_engine(engine_file)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(engine.pythonpath)}
    done = subprocess.run([engine.python, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def nothing_is_left(folder: Path) -> bool:
    return not folder.exists() and not list(folder.parent.glob(f".{folder.name}.*"))


def changed_manifest(folder: Path, **values: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
