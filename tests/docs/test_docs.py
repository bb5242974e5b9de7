"""The docs hold: links resolve, every page is in the index, what is named exists, examples are valid."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from pydantic import BaseModel

from tokgate import baselines
from tokgate.cli import COMMANDS
from tokgate.config import gate, profiles, workloads
from tokgate.config.engine import EngineFile, load_engine
from tokgate.emulator.faults import KINDS
from tokgate.load import sample
from tokgate.verdict import Kind

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> Iterator[str]:
    """Fenced blocks of some languages, their indentation removed."""
    for indent, language, body in re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield "\n".join(line.removeprefix(indent) for line in body.splitlines())


def anchors(text: str) -> set[str]:
    """Anchors that GitHub gives to the headings of a page."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands_in(text: str) -> Iterator[list[str]]:
    """Words after `tokgate` of every command line in code: fenced lines and inline spans."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"`([^`]+)`", prose)
    for block in blocks(text, "", "bash"):
        lines += block.splitlines()
    for line in lines:
        found = re.match(r"(?:\.venv/bin/|\$ )?tokgate (.*)", " ".join(line.split()))
        if found:
            yield found[1].partition("   #")[0].partition(" #")[0].split()


@cache
def pytest_options() -> frozenset[str]:
    """Every option of pytest as perf_tests have it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "perf_tests", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(OPTION.findall(done.stdout))


@cache
def tokgate_options() -> frozenset[str]:
    """The gate's own options of pytest."""
    from fixtures.options import pytest_addoption

    class Recorder:
        def __init__(self) -> None:
            self.names: set[str] = set()

        def getgroup(self, *_: str) -> Recorder:
            return self

        def addoption(self, name: str, **_: Any) -> None:
            self.names.add(name)

    recorder: Any = Recorder()
    pytest_addoption(recorder)
    return frozenset(recorder.names)


@cache
def click_command(name: str) -> Any:
    return typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)


def subcommands(name: str) -> dict[str, Any]:
    return dict(getattr(click_command(name), "commands", {}))


def options(command: Any) -> set[str]:
    """Long options of a click command, without typer's own for completion."""
    found: set[str] = set()
    for parameter in command.params:
        if parameter.param_type_name == "option":
            found |= {o for o in (*parameter.opts, *parameter.secondary_opts) if o.startswith("--")}
    return {option for option in found if "completion" not in option} - {"--help"}


def options_of(name: str) -> set[str]:
    """Options of a command and of its sub-commands."""
    return options(click_command(name)).union(*(options(sub) for sub in subcommands(name).values()))


@pytest.mark.parametrize("name", ["README.md", *NAMES])
def test_every_relative_link_resolves(name: str) -> None:
    page = ROOT / name
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(name)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and anchor not in anchors(other.read_text(encoding="utf-8"))):
            broken.append(target)
    assert not broken


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"\]\(([^)#]+\.md)\)", text_of("docs/README.md")))
    pages = {str(page.relative_to(DOCS)) for page in PAGES} - {"README.md"}
    assert pages - listed == set()


@pytest.mark.parametrize("name", ["README.md", *NAMES])
def test_every_command_and_option_named_exists(name: str) -> None:
    unknown = []
    for words in commands_in(text_of(name)):
        command = words[0]
        if command in {"--help", "--version", "COMMAND"}:
            continue
        if command not in COMMANDS:
            unknown.append(f"tokgate {' '.join(words)}")
            continue
        known = options_of(command) | {"--help"}
        subs = subcommands(command)
        if subs and len(words) > 1 and words[1] not in subs:
            unknown.append(f"tokgate {command} {words[1]}")
        if command == "gate":
            known = known | pytest_options()
        for option in {option for word in words[1:] for option in OPTION.findall(word.partition("=")[0])}:
            if option not in known:
                unknown.append(f"tokgate {command} {option}")
    assert not unknown


def test_the_index_names_only_options_of_the_gate() -> None:
    named = set(OPTION.findall(text_of("docs/README.md")))
    assert named
    assert named <= tokgate_options()


def sections() -> dict[str, str]:
    """docs/reference/options.md by heading."""
    parts = re.split(r"^#{2,3} ", text_of("docs/reference/options.md"), flags=re.MULTILINE)
    return {part.partition("\n")[0].strip(): part.partition("\n")[2] for part in parts[1:]}


def test_every_option_of_the_gate_is_documented_and_no_other() -> None:
    table = "\n".join(
        line.split("|")[1] for line in sections()["pytest perf_tests"].splitlines() if line.startswith("| ")
    )
    assert set(OPTION.findall(table)) == tokgate_options()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_documented_and_no_other(name: str) -> None:
    headings = [h for h in sections() if h.split()[:2] == ["tokgate", name]]
    assert len(headings) == 1
    named: set[str] = set()
    rows = [line for line in sections()[headings[0]].splitlines() if line.startswith("| ")]
    column = [cell.strip() for cell in rows[0].split("|")].index("option")
    for row in rows:
        named |= set(OPTION.findall(row.replace("\\|", "/").split("|")[column]))
    assert named - options_of(name) == set()
    assert options_of(name) - named == set()


def test_every_fault_is_documented() -> None:
    listed = re.findall(r"^\| `([a-z0-9-]+)", sections()["Faults"], re.MULTILINE)
    assert listed == list(KINDS)


LOADERS: dict[str, Callable[[Path], object]] = {
    "profiles.yaml": profiles.load_profiles,
    "workloads.yaml": lambda path: [
        workloads.load_workloads(path, kind) for kind in ("gpu", "cpu", "emulated")
    ],
    "gate.yaml": gate.load_gate,
    "engine.yaml": load_engine,
}


@pytest.mark.parametrize("name", ["README.md", *NAMES])
def test_every_yaml_example_is_what_it_claims_to_be(name: str, tmp_path: Path) -> None:
    for block in blocks(text_of(name), "yaml"):
        claimed = re.match(r"# file: (\S+)\n", block)
        if claimed:
            path = tmp_path / claimed[1]
            path.write_text(block, encoding="utf-8")
            LOADERS[claimed[1]](path)
            continue
        data = yaml.safe_load(block)
        # A block with the keys of one of our files cannot slip past its loader.
        assert not {"profiles", "workloads", "metrics"} & set(data), f"say '# file: ...' on top:\n{block}"
        if "epochs" in data:
            of = data["identity"]
            path = baselines.path_of(tmp_path, of["host_class"], of["profile"], of["workload"])
            path.parent.mkdir(parents=True)
            path.write_text(block, encoding="utf-8")
            assert baselines.read(tmp_path, of["host_class"], of["profile"], of["workload"]) is not None


KEYS: list[tuple[str, type[BaseModel]]] = [
    ("profiles", profiles.ProfilesFile),
    ("profiles", profiles.ProfileSection),
    ("profiles", profiles.SpeculationSection),
    ("profiles", profiles.ModelSection),
    ("profiles", profiles.SyntheticSection),
    ("workloads", workloads.WorkloadSection),
    ("workloads", workloads.PromptSection),
    ("workloads", workloads.ArrivalSection),
    ("workloads", workloads.SizeSection),
    ("gate", gate.GateFile),
    ("gate", gate.Limit),
    ("gate", gate.Runs),
    ("gate", gate.Deadlines),
    ("gate", gate.PhaseFloors),
    ("gate", gate.Statistics),
    ("gate", gate.VoidBounds),
    ("gate", gate.ParitySizes),
    ("engine", EngineFile),
    ("baselines", baselines.IdentitySection),
    ("baselines", baselines.SessionSection),
]


@pytest.mark.parametrize(("page", "model"), KEYS, ids=[model.__name__ for _, model in KEYS])
def test_every_key_is_documented(page: str, model: type[BaseModel]) -> None:
    text = text_of(f"docs/reference/{page}.md")
    assert [key for key in model.model_fields if not re.search(rf"\b{key}\b", text)] == []


@pytest.mark.parametrize(
    "model", [gate.Runs, gate.Deadlines, gate.PhaseFloors, gate.Statistics, gate.VoidBounds, gate.ParitySizes]
)
def test_defaults_of_the_gate_are_as_documented(model: type[BaseModel]) -> None:
    text = text_of("docs/reference/gate.md")
    for key, field in model.model_fields.items():
        if not isinstance(field.default, (int, float)):
            continue
        row = re.search(rf"^\| `(?:\w+\.)?{key}` \| [^|]* \| ([^|]*) \|", text, re.MULTILINE)
        assert row, key
        assert float(row[1]) == field.default, key


@pytest.mark.parametrize(
    "kind",
    [sample.Sample, sample.Identity, sample.Request, sample.Audit, sample.Void],
    ids=lambda k: k.__name__,
)
def test_every_field_of_a_sample_is_documented(kind: type) -> None:
    text = text_of("docs/reference/results.md")
    assert [f.name for f in dataclasses.fields(kind) if f"`{f.name}`" not in text] == []


def test_every_verdict_is_documented_and_no_other() -> None:
    listed = re.findall(r"^\| `([A-Z_]+)`", text_of("docs/reference/verdicts.md"), re.MULTILINE)
    assert sorted(listed) == sorted(Kind)


def test_modules_named_in_the_architecture_exist() -> None:
    named = re.findall(r"`((?:tokgate|fixtures)\.[\w.]+)`", text_of("docs/explanation/architecture.md"))
    assert named
    missing = [name for name in named if importlib.util.find_spec(name) is None]
    assert missing == []
