"""What `tokgate env make` may be asked for."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tokgate.environments.wanted import parse, python_version, slug
from tokgate.errors import UsageFault

SHA = "1f0c" * 10


def test_released_version() -> None:
    wanted = parse("sglang==0.5.15.post1")
    assert (wanted.source, wanted.package, wanted.version) == ("release", "sglang", "0.5.15.post1")
    assert wanted.name == "sglang-0.5.15.post1"
    assert parse(" 0.5.15.post1\n") == wanted  # as ci/sglang.pin has it


def test_extras_are_kept() -> None:
    wanted = parse("SGLang[all, diffusion]==0.5.15")
    assert (wanted.package, wanted.extras) == ("sglang", "[all, diffusion]")
    assert wanted.name == "sglang-all-diffusion-0.5.15"


def test_commit_of_a_repository() -> None:
    wanted = parse(f"sglang[all] @ git+https://example.org/sglang.git@{SHA}#subdirectory=python")
    assert (wanted.source, wanted.ref, wanted.subdirectory) == ("git", SHA, "python")
    assert wanted.location == "https://example.org/sglang.git"
    assert wanted.extras == "[all]"


def test_user_in_an_ssh_address_is_no_commit() -> None:
    wanted = parse("sglang @ git+ssh://git@example.org/sglang.git@main")
    assert (wanted.location, wanted.ref) == ("ssh://git@example.org/sglang.git", "main")


def test_password_is_not_shown() -> None:
    wanted = parse(f"sglang @ git+https://me:secret@example.org/sglang.git@{SHA}")
    assert "secret" not in wanted.text
    assert "secret" in wanted.location
    with pytest.raises(UsageFault) as caught:
        parse("sglang @ https://me:secret@example.org/sglang.whl")
    assert "secret" not in str(caught.value)


def test_commit_of_a_clone(tmp_path: Path) -> None:
    wanted = parse(f"commit:{SHA}", tmp_path)
    assert (wanted.source, wanted.ref, wanted.location) == ("commit", SHA, str(tmp_path))


@pytest.mark.parametrize(("text", "with_repo"), [(f"commit:{SHA}", False), ("sglang==0.5.15", True)])
def test_commit_and_repo_go_together(text: str, with_repo: bool, tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="needs both: commit:SHA and --repo PATH"):
        parse(text, tmp_path if with_repo else None)


def test_clone_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="no such folder"):
        parse(f"commit:{SHA}", tmp_path / "absent")


def test_wheel_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "sglang-0.5.16-py3-none-any.whl"
    with pytest.raises(UsageFault, match="no wheel"):
        parse(str(path))
    path.touch()
    with pytest.raises(UsageFault, match="is no wheel: expected a zip file named as in"):
        parse(str(path))
    zipfile.ZipFile(path, "w").close()
    assert (parse(str(path)).source, parse(str(path)).package) == ("wheel", "sglang")
    assert parse(str(tmp_path)).source == "folder"


@pytest.mark.parametrize("text", ["", "sglang", "sglang>=0.5", "sglang==", "sglang @ git+https://x/y", "5"])
def test_other_text_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageFault, match="cannot make an environment of") as caught:
        parse(text)
    assert "commit:SHA --repo PATH" in str(caught.value)


def test_names_are_safe_as_folders() -> None:
    assert slug("../a b[c]/d") == "a-b-c-d"


@pytest.mark.parametrize("version", ["abc", "0.5.x", "0.5.15-cpu", "0.5..1"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(UsageFault, match="is no version; expected numbers"):
        parse(f"sglang=={version}")


@pytest.mark.parametrize(
    "version",
    ["0.5", "0.5.15.post1", "0.6.0rc1", "0.5.16.dev20+g1f0c2a7", "1!2.0", "0.5.post1.dev3", "0.5-1"],
)
def test_a_version_of_any_form_is_taken(version: str) -> None:
    assert parse(f"sglang=={version}").version == version


def test_another_package_is_not_an_engine(tmp_path: Path) -> None:
    path = tmp_path / "requests-2.0-py3-none-any.whl"
    zipfile.ZipFile(path, "w").close()
    for text in ("requests==2.0", f"requests @ git+https://example.org/r.git@{SHA}", str(path)):
        with pytest.raises(UsageFault, match="requests is not SGLang"):
            parse(text)


def test_python_is_a_version_of_cpython_that_sglang_runs_on() -> None:
    assert python_version("3.12") == "3.12"
    for text in ("abc", "2.7", "3", "3.7", "3.12 ", ""):
        with pytest.raises(UsageFault, match=r"--python .*: expected a version of CPython, 3\.8 or later"):
            python_version(text)
