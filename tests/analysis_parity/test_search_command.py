"""``tokgate parity search`` on two running emulated servers: found, made small, written, replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.contract.launches import launch_spec
from tokgate.analysis.parity_case import load_case
from tokgate.cli import run
from tokgate.config.engine import emulated_engine
from tokgate.config.profiles import Profile
from tokgate.errors import ResultsUnwritable
from tokgate.server.launch import start

SMALL = ("--prompt-tokens=16", "--new-tokens=12", "--requests=4", "--examples=60")


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Start an emulated server, with a fault or without; returns its address."""
    with ExitStack() as servers:

        def begin(fault: str | None = None) -> str:
            folder = tmp_path_factory.mktemp("server")
            spec = launch_spec(emulated_engine("steady"), Profile(name="baseline"), folder, folder)
            argv = (*spec.argv, "--scenario-override", "baseline.step_ms=0.2")
            planted = ("--fault", fault) if fault else ()
            return servers.enter_context(start(replace(spec, argv=(*argv, *planted)))).url

        yield begin


@pytest.fixture(scope="module")
def reference(launch: Callable[..., str]) -> str:
    return launch()


@pytest.fixture(scope="module")
def twin(launch: Callable[..., str]) -> str:
    return launch()


def searched(first: str, second: str, out: Path, *more: str) -> int:
    return run(["parity", "search", "--url", first, "--url", second, *SMALL, "--out", str(out), *more])


def test_a_wrong_token_is_found_made_small_and_replayed(launch, reference, tmp_path, capsys):
    other, path = launch("wrong-token:4"), tmp_path / "found.case.json"
    assert searched(reference, other, path) == 1
    out = capsys.readouterr().out
    assert out.startswith("DIVERGED 1 request, prompt of 1 token, 5 new tokens: ")
    assert "request 0: diverged at output token 4" in out
    assert "asked again it differed 3 of 3 times" in out
    (request,) = load_case(path).requests
    assert (len(request.prompt_ids), request.new_tokens) == (1, 5)
    assert run(["parity", "replay", str(path), "--url", reference, "--url", other]) == 1
    assert "diverged at output token 4" in capsys.readouterr().out


def test_a_build_is_equal_to_itself(reference, twin, tmp_path, capsys):
    path = tmp_path / "none.case.json"
    assert searched(reference, twin, path, "--examples=20") == 0
    assert capsys.readouterr().out.startswith("PASS no case differs: ")
    assert not path.exists()


def test_a_server_is_not_held_against_itself(command, reference, capsys):
    port = reference.rpartition(":")[2]
    for again in (reference, f"{reference}/", f"localhost:{port}"):
        assert run([*command, "--url", reference, "--url", again]) == 2
        out, err = capsys.readouterr()
        assert "both addresses are of one server" in err and out == ""


def test_where_the_case_goes_is_looked_at_before_anything_is_asked(reference, twin, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert searched(reference, twin, tmp_path / "file" / "x.json") == 3
    out, err = capsys.readouterr()
    assert "results cannot be written" in err and out == ""
    assert searched(reference, twin, tmp_path) == 2
    assert "it is a folder" in capsys.readouterr().err


def test_a_difference_is_told_though_it_cannot_be_written(launch, reference, tmp_path, capsys, monkeypatch):
    def full(case, path):
        raise ResultsUnwritable(f"{path}: No space left on device")

    monkeypatch.setattr("tokgate.cli.parity.save_case", full)
    assert searched(reference, launch("wrong-token:4"), tmp_path / "x.json") == 3
    out, err = capsys.readouterr()
    assert out.startswith("DIVERGED 1 request") and "request 0: diverged at output token 4" in out
    assert "No space left" in err and "file:" not in out


def test_no_time_is_no_pass(reference, twin, tmp_path, capsys):
    assert searched(reference, twin, tmp_path / "x.json", "--budget-s=0.001") == 3
    assert "INCONCLUSIVE no case differs" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("repeat-token:4", "1 request, prompt of 1 token, 5 new tokens"),
        ("truncate:9", "1 request, prompt of 1 token, 10 new tokens"),
        ("swap-requests", "2 requests, at once, prompts of 1 and 1 tokens, "),
        ("stale-prefix", "2 requests, in turn, prompts of "),
        ("tie-flip:0.5", "1 request, prompt of 1 token, "),
    ],
)
def test_each_fault_of_the_emulator_is_made_small(launch, reference, tmp_path, capsys, fault, words):
    assert searched(reference, launch(fault), tmp_path / "found.case.json") == 1
    assert capsys.readouterr().out.startswith(f"DIVERGED {words}")


@pytest.mark.slow
def test_ties_of_the_emulator_are_counted(launch, reference, tmp_path, capsys):
    assert searched(reference, launch("tie-flip:0.01"), tmp_path / "none.case.json") == 0
    assert " 0 ties" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "http://127.0.0.1:9"], "must be given twice"),
        (["--url", "http://127.0.0.1:9", "--url", "http://127.0.0.1:7", "--requests", "0"], "at least 1"),
        (
            ["--url", "http://127.0.0.1:9", "--url", "http://127.0.0.1:7", "--model", "none"],
            "make a pair with",
        ),
    ],
)
def test_bad_input_is_one_message(capsys, arguments, message):
    assert run(["parity", "search", *arguments]) in (2, 3)
    assert message in capsys.readouterr().err


CASE = """{"requests": [{"prompt_ids": [20, 21], "new_tokens": 2}]}"""


@pytest.fixture(params=["search", "replay"])
def command(request, tmp_path) -> list[str]:
    """The beginning of a command that asks two servers."""
    if request.param == "search":
        return ["parity", "search", *SMALL, "--out", str(tmp_path / "x.json")]
    (tmp_path / "one.case.json").write_text(CASE)
    return ["parity", "replay", str(tmp_path / "one.case.json")]


@pytest.fixture
def failing() -> Iterator[str]:
    """Address of a server that answers every request with HTTP 500."""

    class Failing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_that_does_not_answer_is_no_difference(command, reference, capsys):
    assert run([*command, "--url", reference, "--url", "http://127.0.0.1:1"]) == 3
    assert "http://127.0.0.1:1/flush_cache: no answer" in capsys.readouterr().err


def test_a_server_that_fails_is_no_difference(command, reference, failing, capsys):
    assert run([*command, "--url", reference, "--url", failing]) == 3
    assert "/flush_cache: HTTP 500" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1:9", "http://", "http://127.0.0.1:port", "http://no..host:9"]
)
def test_what_is_no_address_is_bad_usage(command, reference, capsys, url):
    assert run([*command, "--url", reference, "--url", url]) == 2
    assert "expected" in (said := capsys.readouterr().err)
    assert "http://HOST:PORT" in said


def test_an_address_may_stand_without_its_scheme(reference, twin, tmp_path):
    bare, other = (url.removeprefix("http://") for url in (reference, twin))
    assert searched(bare, other, tmp_path / "x.json", "--examples=2") == 0


def test_a_vocabulary_of_nothing_is_refused(capsys):
    urls = ("--url", "http://127.0.0.1:9", "--url", "http://127.0.0.1:7")
    assert run(["parity", "search", *urls, "--vocabulary", "0"]) == 2
    assert "vocabulary must be above" in capsys.readouterr().err
