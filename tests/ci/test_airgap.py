"""ci.airgap: what is packed is what is unpacked."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from ci.airgap.__main__ import RULES, main
from ci.airgap.pack import pack
from ci.airgap.rules import Rules, load_rules
from ci.airgap.unpack import unpack
from tests.ci.packs import PIECE, PYTEST, changed_manifest, run_in, silent, wheel
from tokgate.config.engine import load_engine
from tokgate.environments.checksum import contents


def test_round_trip(packed: Path, tmp_path: Path) -> None:
    engine_file = unpack(packed, tmp_path / "engines" / "sglang-0.5.15", sys.executable)
    engine = load_engine(engine_file)
    assert (engine.name, engine.kind, engine.version) == ("sglang-0.5.15", "gpu", "0.5.15")
    assert engine.env == {"HF_HUB_OFFLINE": "1"}
    assert engine.lock is not None and "sglang==0.5.15" in engine.lock.read_text()
    assert engine.lock_digest == hashlib.sha256(engine.lock.read_bytes()).hexdigest()
    code = "import sglang, kernel, deep_module; print(sglang.ANSWER, kernel.K, deep_module.DEPTH)"
    assert run_in(engine_file, code) == "15 1 2"


def test_pieces_have_the_size_asked_for_and_no_more_than_is_needed_is_carried(packed: Path) -> None:
    manifest = json.loads((packed / "manifest.json").read_text())
    sizes = [piece.stat().st_size for piece in sorted(packed.glob("piece-*"))]
    assert len(sizes) > 2 and set(sizes[:-1]) == {PIECE} and 0 < sizes[-1] <= PIECE
    names = set(manifest["files"])
    assert "sglang/same.txt" in names
    assert not names & {"kernel_big/flash.so", "datasets.py", "pytest.py"}
    assert manifest["runner"] == {"pytest": PYTEST}
    # The lock says all that was resolved, also what is not carried.
    assert "datasets==1.0" in (packed / "lock.txt").read_text()
    assert not [line for line in (packed / "lock.txt").read_text().splitlines() if "://" in line]


def test_any_xz_and_tar_read_the_joined_pieces(packed: Path) -> None:
    joined = b"".join(piece.read_bytes() for piece in sorted(packed.glob("piece-*")))
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(joined))) as found:
        assert "sglang/__init__.py" in found.getnames()


def test_same_input_same_pieces(packed: Path, rules: Rules, tmp_path: Path) -> None:
    pack("sglang==0.5.15", tmp_path / "again", rules, PIECE, say=silent)
    for path in packed.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_pruned_files_leave_the_record_too(packed: Path, tmp_path: Path) -> None:
    engine_file = unpack(packed, tmp_path / "engine", sys.executable)
    found = contents(engine_file.parent / "site")
    assert found.damaged == ()
    assert found.versions == {"sglang": "0.5.15", "kernel": "2.0"}


def test_second_unpacking_changes_nothing(packed: Path, tmp_path: Path) -> None:
    first = unpack(packed, tmp_path / "engine", sys.executable)
    stamp = first.stat().st_mtime_ns
    assert unpack(packed, tmp_path / "engine", sys.executable) == first
    assert first.stat().st_mtime_ns == stamp


def test_sources_are_compiled_where_they_will_be_run(index: Path, rules: Rules, tmp_path: Path) -> None:
    wheel(index, "odd", "1.0", {"odd.py": "print 'for another Python'\n", "even.py": "def here(): raise\n"})
    wheel(index, "sglang", "0.5.16", {"sglang/__init__.py": ""}, "odd")
    pack("sglang==0.5.16", tmp_path / "pack", rules, PIECE, say=silent)
    site = unpack(tmp_path / "pack", tmp_path / "engine", sys.executable).parent / "site"
    compiled = {path.name.partition(".")[0]: path for path in site.rglob("__pycache__/*.pyc")}
    assert set(compiled) == {"__init__", "even"}
    # Its name for a traceback is that of the source, not of the folder in which it was unpacked.
    assert str(site / "even.py").encode() in compiled["even"].read_bytes()


@pytest.mark.parametrize("by_pack", [True, False], ids=["pack", "version"])
def test_difference_to_a_base(by_pack: bool, packed: Path, rules: Rules, tmp_path: Path) -> None:
    base = str(packed) if by_pack else "0.5.15"
    out = tmp_path / "delta"
    table = pack("sglang==0.5.13", out, rules, PIECE, base=base, say=silent)
    assert "sglang-0.5.13, difference to sglang-0.5.15" in table
    manifest = json.loads((out / "manifest.json").read_text())
    assert "sglang/same.txt" not in manifest["packed"] and "kernel.py" not in manifest["packed"]
    size = [sum(path.stat().st_size for path in folder.glob("piece-*")) for folder in (out, packed)]
    assert size[0] < size[1] / 5

    new = unpack(packed, tmp_path / "engines" / "sglang-0.5.15", sys.executable)
    old = unpack(out, tmp_path / "engines" / "sglang-0.5.13", sys.executable)  # finds the base beside it
    assert run_in(old, "import sglang, sglang.old, kernel; print(sglang.ANSWER)") == "13"
    assert run_in(new, "import sglang, sglang.new, kernel; print(sglang.ANSWER)") == "15"
    assert not (old.parent / "site" / "sglang" / "new.py").exists()
    assert contents(old.parent / "site").versions == {"sglang": "0.5.13", "kernel": "2.0"}
    # Nothing is on the disk twice.
    same = Path("site", "sglang", "same.txt")
    assert (old.parent / same).stat().st_ino == (new.parent / same).stat().st_ino


def test_without_xz_python_compresses(
    index: Path, rules: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "xz" else which(name))
    pack("sglang==0.5.15", tmp_path / "pack", rules, PIECE, say=silent)
    engine = unpack(tmp_path / "pack", tmp_path / "engine", sys.executable)
    assert run_in(engine, "import sglang; print(sglang.ANSWER)") == "15"


def test_unpack_needs_no_clone_and_no_package(packed: Path, tmp_path: Path) -> None:
    """As on a runner: isolated, no site-packages, the copy that the pack holds."""
    changed_manifest(packed, runner={})
    command = [
        sys.executable,
        "-I",
        "-S",
        str(packed / "unpack.py"),
        str(packed),
        "--to",
        str(tmp_path / "e"),
    ]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"use it with: --engine {tmp_path / 'e' / 'engine.yaml'}" in done.stdout
    (tmp_path / "e" / "manifest.json").unlink()
    again = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.startswith("unpack: ")) == (3, True)


def test_new_dependency_of_a_later_version_is_carried(index: Path, rules: Rules, tmp_path: Path) -> None:
    wheel(index, "sglang", "0.5.24", {"sglang/__init__.py": ""}, "kernel", "newcomer")
    wheel(index, "newcomer", "1", {"newcomer.py": ""})
    pack("sglang==0.5.24", tmp_path / "pack", rules, PIECE, say=silent)
    assert "newcomer.py" in json.loads((tmp_path / "pack" / "manifest.json").read_text())["files"]
    without = replace(rules, left_out=frozenset({"newcomer"}))
    pack("sglang==0.5.24", tmp_path / "less", without, PIECE, say=silent)
    assert "newcomer.py" not in json.loads((tmp_path / "less" / "manifest.json").read_text())["files"]


def test_command(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules_file = tmp_path / "rules.yaml"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    rules_file.write_text(f'python: "{python}"\nplatform: x86_64-manylinux_2_34\nleft_out: [pytest]\n')
    arguments = ["--out", str(tmp_path / "out"), "--rules", str(rules_file), "--piece-mib", "0.01"]
    assert main(["pack", "sglang==0.5.15", *arguments]) == 0
    assert "not carried: 1 packages" in capsys.readouterr().out
    assert main(["unpack", str(tmp_path / "out"), "--to", str(tmp_path / "engine")]) == 0
    assert main(["unpack", str(tmp_path), "--to", str(tmp_path / "other")]) == 2
    assert main(["pack", "sglang==0.5.15", *arguments]) == 2
    rules_file.write_text("python: 3\nprun: []\n")
    assert main(["pack", "sglang==0.5.15", "--out", str(tmp_path / "o2"), "--rules", str(rules_file)]) == 2
    assert "prun" in capsys.readouterr().err


def test_shipped_rules_are_readable_and_carry_sglang() -> None:
    rules = load_rules(RULES)
    assert rules.carries("sglang") and rules.carries("transformers") and not rules.carries("torch")
    assert rules.prunes("sgl_kernel/sm100/common_ops.abi3.so")
    assert not rules.prunes("sgl_kernel/sm90/common_ops.abi3.so")
    # Where the wheels of 0.5.15.post1 have them; the static library alone is 28 MB of a pack.
    assert rules.prunes("xgrammar/lib/libxgrammar.a") and rules.prunes("sgl_kernel/flash_ops.abi3.so")
