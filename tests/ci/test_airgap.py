"""ci.airgap: what is packed is what is unpacked; what is damaged, missing or not fitting is refused."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ci.airgap import archive
from ci.airgap.__main__ import RULES, main
from ci.airgap.pack import pack
from ci.airgap.rules import Rules, load_rules
from ci.airgap.unpack import Refused, unpack
from tokgate.config.engine import load_engine
from tokgate.environments.checksum import contents
from tokgate.errors import HostFault, UsageFault

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


@pytest.fixture
def index(wheels: Path) -> Path:
    """sglang in two versions that share a large file, with a kernel, a .pth and what the runner has."""
    for version, answer in (("0.5.13", "13"), ("0.5.15", "15")):
        files = {"sglang/__init__.py": f"ANSWER = {answer}\n", "sglang/same.txt": NOISE}
        files |= {"sglang/old.py": ""} if version == "0.5.13" else {"sglang/new.py": ""}
        wheel(wheels, "sglang", version, files, "kernel", "datasets", f"pytest=={PYTEST}")
    inner = {"dsl/inner/deep_module.py": "DEPTH = 2\n", "dsl.pth": "# a comment\ndsl/inner\nimport os\n"}
    wheel(wheels, "kernel", "2.0", {"kernel_big/flash.so": NOISE, "kernel.py": "K = 1\n", **inner})
    wheel(wheels, "datasets", "1.0", {"datasets.py": ""})
    wheel(wheels, "pytest", PYTEST, {"pytest.py": ""})
    return wheels


@pytest.fixture
def packed(index: Path, rules: Rules, tmp_path: Path) -> Path:
    out = tmp_path / "pack"
    pack("sglang==0.5.15", out, rules, PIECE, say=silent)
    return out


def run_in(engine_file: Path, code: str) -> str:
    engine = load_engine(engine_file)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(engine.pythonpath)}
    done = subprocess.run([engine.python, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


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


def test_folder_of_something_else_is_not_touched(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "mine").touch()
    with pytest.raises(Refused, match="is there already"):
        unpack(packed, tmp_path / "engine", sys.executable)


def nothing_is_left(folder: Path) -> bool:
    return not folder.exists() and not list(folder.parent.glob(f".{folder.name}.*"))


def test_damaged_piece_is_refused(packed: Path, tmp_path: Path) -> None:
    piece = packed / "piece-001"
    content = bytearray(piece.read_bytes())
    content[100] ^= 1
    piece.write_bytes(content)
    with pytest.raises(Refused, match="piece-001 is damaged"):
        unpack(packed, tmp_path / "engine", sys.executable)
    assert nothing_is_left(tmp_path / "engine")


def test_missing_piece_is_refused(packed: Path, tmp_path: Path) -> None:
    (packed / "piece-002").unlink()
    with pytest.raises(Refused, match=r"piece-002 of .* is missing"):
        unpack(packed, tmp_path / "engine", sys.executable)


def changed_manifest(folder: Path, **values: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_other_python_is_refused(packed: Path, tmp_path: Path) -> None:
    changed_manifest(packed, python="3.7")
    with pytest.raises(Refused, match=r"it has python 3\.1\d, not 3\.7"):
        unpack(packed, tmp_path / "engine", sys.executable)


def test_runner_with_another_torch_is_refused(packed: Path, tmp_path: Path) -> None:
    changed_manifest(packed, runner={"pytest": "0.1", "no-such-package": "2"})
    with pytest.raises(Refused, match=rf"pytest {PYTEST}, not 0\.1; no-such-package absent, not 2"):
        unpack(packed, tmp_path / "engine", sys.executable)


def test_file_whose_digest_is_not_the_manifests_is_refused(packed: Path, tmp_path: Path) -> None:
    manifest = json.loads((packed / "manifest.json").read_text())
    files = manifest["files"] | {"kernel.py": "0" * 64}
    changed_manifest(packed, files=files)
    with pytest.raises(Refused, match=r"kernel\.py, the pack's, is not what the manifest says"):
        unpack(packed, tmp_path / "engine", sys.executable)
    assert nothing_is_left(tmp_path / "engine")


def test_path_out_of_the_folder_is_refused(packed: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "evil.py").write_text("")
    for piece in packed.glob("piece-*"):
        piece.unlink()
    pieces = archive.write(site, ["../evil.py"], packed, PIECE)
    listed = [{"name": p.name, "sha256": p.sha256, "size_bytes": p.size_bytes} for p in pieces]
    changed_manifest(packed, pieces=listed, packed=["../evil.py"], files={})
    with pytest.raises(Refused, match="outside of the folder"):
        unpack(packed, tmp_path / "engine", sys.executable)


def test_folder_that_is_no_pack(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"is no pack: manifest\.json"):
        unpack(tmp_path, tmp_path / "engine", sys.executable)


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


def test_base_that_is_absent_or_altered_is_refused(packed: Path, rules: Rules, tmp_path: Path) -> None:
    out = tmp_path / "delta"
    pack("sglang==0.5.13", out, rules, PIECE, base=str(packed), say=silent)
    with pytest.raises(Refused, match=r"the difference to sglang-0\.5\.15: no .*; name it by --base"):
        unpack(out, tmp_path / "engines" / "old", sys.executable)
    engine = unpack(packed, tmp_path / "base", sys.executable)
    (engine.parent / "site" / "sglang" / "same.txt").write_text("changed")
    with pytest.raises(Refused, match=r"same\.txt, the base's, is not what the manifest says"):
        unpack(out, tmp_path / "old", sys.executable, engine.parent)
    (engine.parent / "site" / "sglang" / "same.txt").unlink()
    with pytest.raises(Refused, match=r"is not the base of this pack: it has no sglang/same\.txt"):
        unpack(out, tmp_path / "old", sys.executable, engine.parent)
    assert nothing_is_left(tmp_path / "old")


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


def test_faults_of_use(index: Path, rules: Rules, tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="is no released version"):
        pack("sglang", tmp_path / "a", rules, PIECE, say=silent)
    with pytest.raises(UsageFault, match="must be above 0"):
        pack("sglang==0.5.15", tmp_path / "a", rules, 0, say=silent)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()
    with pytest.raises(UsageFault, match="is there already"):
        pack("sglang==0.5.15", tmp_path / "b", rules, PIECE, say=silent)
    with pytest.raises(HostFault, match="resolving by uv failed") as caught:
        pack("sglang==0.5.99", tmp_path / "c", rules, PIECE, say=silent)
    assert any("sglang==0.5.99" in line for line in caught.value.details)
    assert not list((tmp_path / "c").glob("*"))


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


def test_a_path_that_is_no_pack_is_a_usage_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, nope = tmp_path / "out", tmp_path / "nope"
    assert main(["pack", "sglang==0.5.15", "--out", str(out), "--base", str(nope)]) == 2
    assert f"no pack at {nope}, and no version" in capsys.readouterr().err
    assert not out.exists()
    assert main(["unpack", str(nope), "--to", str(out)]) == 2
    assert f"unpack: no pack at {nope}" in capsys.readouterr().err
