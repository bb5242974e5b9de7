"""ci.airgap: what is damaged, missing or not fitting is refused, and nothing of it is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ci.airgap import archive
from ci.airgap.__main__ import main
from ci.airgap.pack import pack
from ci.airgap.rules import Rules
from ci.airgap.unpack import Refused, unpack
from tests.ci.packs import PIECE, PYTEST, changed_manifest, nothing_is_left, silent
from tokgate.errors import HostFault, UsageFault


def test_folder_of_something_else_is_not_touched(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "mine").touch()
    with pytest.raises(Refused, match="is there already"):
        unpack(packed, tmp_path / "engine", sys.executable)


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


def test_a_path_that_is_no_pack_is_a_usage_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, nope = tmp_path / "out", tmp_path / "nope"
    assert main(["pack", "sglang==0.5.15", "--out", str(out), "--base", str(nope)]) == 2
    assert f"no pack at {nope}, and no version" in capsys.readouterr().err
    assert not out.exists()
    assert main(["unpack", str(nope), "--to", str(out)]) == 2
    assert f"unpack: no pack at {nope}" in capsys.readouterr().err
