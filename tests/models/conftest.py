"""A tiny pair made once, and its independent forward passes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.models.bfloat16_preset import NAME, add
from tokgate.models import presets
from tokgate.models.checkup import prompt_of, walk
from tokgate.models.dial import verify_count
from tokgate.models.forward import Model, draft_chain, load_model, target_pass
from tokgate.models.maker import make
from tokgate.models.rule import Rule
from tokgate.models.truth import Truth, load_truth

PROMPT, NEW, STEPS = 120, 41, 3


@dataclass(frozen=True)
class Pair:
    """The pair's folder, its rule, and one prompt with the right continuation."""

    folder: Path
    truth: Truth
    prompt: list[int]
    ids: list[int]

    @property
    def rule(self) -> Rule:
        return self.truth.rule

    def model(self, part: str, *, rounded: bool = False) -> Model:
        return load_model(self.folder / part, rounded=rounded)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make("tiny", folder, accept_length=2.5)
    truth = load_truth(folder)
    prompt = prompt_of(truth.rule, PROMPT)
    return Pair(folder, truth, prompt, [*prompt, *truth.rule.continuation(prompt, NEW)])


@pytest.fixture
def bfloat16_preset(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a preset as small as `tiny`, in bfloat16."""
    monkeypatch.setattr(presets, "PRESETS", presets.PRESETS)
    add()
    return NAME


@pytest.fixture
def copied_pair(pair: Pair, tmp_path: Path) -> Path:
    """A copy of the pair that a test may break."""
    shutil.copytree(pair.folder, tmp_path / "pair")
    return tmp_path / "pair"


@pytest.fixture
def accept_length(pair: Pair) -> Callable[..., float]:
    """Accept length that the forward passes give for the pair's prompt, with the draft fed as asked."""

    def measure(
        draft: Model | None = None, *, capture: tuple[int, ...] | None = None, skip_fc: bool = False
    ) -> float:
        target = pair.model("target")
        result = target_pass(target, pair.ids, capture=capture)
        hidden = result.final if skip_fc else result.aux
        proposed = draft_chain(draft or pair.model("draft"), target.weights, pair.ids, hidden[:-1], STEPS)
        right = walk(proposed, pair.ids, PROMPT, STEPS)
        return (NEW - 1) / verify_count(right, STEPS)

    return measure


@pytest.fixture
def next_tokens(pair: Pair) -> Callable[..., np.ndarray]:
    """The target's greedy choices at every position, with faults as asked."""

    def run(ids: list[int] | None = None, *, rounded: bool = False, **faults: object) -> np.ndarray:
        model = pair.model("target", rounded=rounded)
        return model.logits(target_pass(model, ids or pair.ids, **faults).final).argmax(axis=1)

    return run
