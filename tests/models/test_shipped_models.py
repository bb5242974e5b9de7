"""Real models in the shipped profiles: what they are launched with, and what the guard says of such drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokgate.config.profiles import load_profiles
from tokgate.sglang.flags import server_arguments

ROOT = Path(__file__).parents[2]
OPTIONS = ROOT / "tests" / "sglang" / "options"
FOUNDING = (
    "--tp-size 8",
    "--mem-fraction-static 0.88",
    "--num-continuous-decode-steps 4",
    "--disable-custom-all-reduce",
    "--speculative-algorithm EAGLE3",
    "--speculative-draft-model-path lightseekorg/kimi-k2.5-eagle3",
    "--speculative-eagle-topk 1",
    "--speculative-num-draft-tokens 3",
    "--speculative-num-steps 2",
    "--speculative-attention-mode decode",
)


@pytest.fixture(scope="module")
def shipped():
    return load_profiles(ROOT / "perf_tests" / "profiles.yaml")


def launched(shipped, name, version="0.5.15.post1"):
    profile = shipped.get(name)
    model = shipped.models[profile.model]
    return server_arguments(
        profile,
        version=version,
        kind="gpu",
        target=model.target,
        draft=model.draft if profile.speculation else None,
        host="127.0.0.1",
        port=30000,
    )


def test_the_founding_launch_line_is_whole(shipped):
    arguments = launched(shipped, "kimi-eagle3")
    text = " ".join(arguments.argv)
    assert [flag for flag in FOUNDING if flag not in text] == []
    assert arguments.env["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"


@pytest.mark.parametrize("version", ["0.5.13.post1", "0.5.15.post1", "0.5.23"])
@pytest.mark.parametrize(
    "name", ["llama-baseline", "llama-eagle3", "kimi-baseline", "kimi-eagle3", "eagle3-radix"]
)
def test_every_flag_exists_in_that_version(shipped, name, version):
    known = (OPTIONS / f"{version}.txt").read_text().split()
    profile = shipped.get(name)
    if profile.model is None:
        arguments = server_arguments(
            profile, version=version, kind="gpu", target="t", draft="d", host="127.0.0.1", port=30000
        ).argv
    else:
        arguments = launched(shipped, name, version).argv
    assert [word for word in arguments if word.startswith("--") and word not in known] == []


def test_they_run_only_when_they_are_named(shipped):
    for name in ("llama-baseline", "llama-eagle3", "kimi-baseline", "kimi-eagle3", "eagle3-radix"):
        assert shipped.get(name).on_demand


def test_both_sides_differ_in_speculation_alone(shipped):
    for name in ("llama-eagle3", "kimi-eagle3"):
        profile = shipped.get(name)
        reference = shipped.get(profile.reference)
        without = list(launched(shipped, profile.reference).argv)
        extra = [word for word in launched(shipped, name).argv if word not in without]
        assert all(word.startswith("--speculative") for word in extra if word.startswith("--"))
        assert (profile.model, profile.tp, profile.env) == (reference.model, reference.tp, reference.env)
