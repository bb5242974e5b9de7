"""``profiles.yaml``: server configurations in neutral words, and the models that they serve.

A profile says what is wanted (``cuda_graphs: off``), never how a given SGLang version spells it;
:mod:`tokgate.sglang.flags` turns it into arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tokgate.config.document import Document, Location, Section, nearest
from tokgate.config.engine import EngineKind
from tokgate.errors import UsageFault

AttentionMode = Literal["prefill", "decode"]


class SpeculationSection(Section):
    """Speculative decoding, when a profile has it."""

    algorithm: str = "EAGLE3"
    steps: int | None = Field(default=None, ge=1)
    topk: int | None = Field(default=None, ge=1)
    draft_tokens: int | None = Field(default=None, ge=1)
    attention_mode: AttentionMode = "prefill"
    draft_attention_backend: str | None = None


class ProfileSection(Section):
    """One profile as written; every key may come from the profile that it extends."""

    extends: str | None = None
    on_demand: bool | None = None
    engines: list[EngineKind] | None = None
    reference: str | None = None
    model: str | None = None
    tp: int | None = Field(default=None, ge=1)
    cuda_graphs: bool | None = None
    cuda_graph_max_bs: int | None = Field(default=None, ge=1)
    prefill_cuda_graphs: bool | None = None
    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    sampling_backend: str | None = None
    attention_mode: AttentionMode | None = None
    dtype: str | None = None
    mem_fraction: float | None = Field(default=None, gt=0, lt=1)
    max_running_requests: int | None = Field(default=None, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=1)
    context_length: int | None = Field(default=None, ge=1)
    radix_cache: bool | None = None
    random_seed: int | None = None
    speculation: SpeculationSection | None = None
    env: dict[str, str] | None = None
    extra_flags: list[str] | None = None


WHICH_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that no profile may set: its server would be on other GPUs than the run holds."""


class SyntheticSection(Section):
    """A generated target + draft pair: made on this machine by ``tokgate model make``."""

    preset: str
    seed: int = 0
    accept_length: float | None = Field(default=None, ge=1)


class ModelSection(Section):
    """A model: a generated pair, or local paths or hub names."""

    synthetic: SyntheticSection | None = None
    target: str | None = None
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None


class ProfilesFile(Section):
    """Schema of ``profiles.yaml``."""

    models: dict[str, ModelSection] = {}
    default_model: dict[Literal["gpu", "cpu"], str] = {}
    profiles: dict[str, ProfileSection]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding as asked. ``None`` leaves the choice to SGLang (and is recorded as such)."""

    algorithm: str = "EAGLE3"
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    attention_mode: AttentionMode = "prefill"
    draft_attention_backend: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name.

    Attributes:
        target, draft: local path or hub name; ``None`` for a synthetic pair until it is made.
        preset, seed, accept_length: of a synthetic pair.
    """

    name: str
    target: str | None = None
    target_revision: str | None = None
    draft: str | None = None
    draft_revision: str | None = None
    preset: str | None = None
    seed: int = 0
    accept_length: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """One server configuration, resolved. See :class:`ProfileSection` for the keys.

    Attributes:
        reference: the profile that a speculative one is held against.
        on_demand: run only when named.
        engines: kinds of engine on which it is run without being named.
    """

    name: str
    on_demand: bool = False
    engines: tuple[EngineKind, ...] = ("gpu", "cpu", "emulated")
    reference: str | None = None
    model: str | None = None
    tp: int = 1
    cuda_graphs: bool = True
    cuda_graph_max_bs: int | None = None
    prefill_cuda_graphs: bool | None = None
    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    sampling_backend: str | None = None
    dtype: str | None = None
    mem_fraction: float | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    radix_cache: bool = True
    random_seed: int | None = None
    speculation: Speculation | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    extra_flags: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """First 12 hex digits of SHA-256 over all that changes what is measured."""
        facts: dict[str, Any] = asdict(self)
        for key in ("name", "reference", "on_demand", "engines"):
            facts.pop(key)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles and models of a file.

    Attributes:
        default_model: engine kind -> model name, for profiles that name no model.
    """

    path: Path
    profiles: Mapping[str, Profile]
    models: Mapping[str, Model]
    default_model: Mapping[str, str]

    def get(self, name: str) -> Profile:
        """The profile of that name.

        Raises:
            UsageFault: no such profile; names the nearest.
        """
        if name in self.profiles:
            return self.profiles[name]
        raise UsageFault(f"no profile '{name}' in {self.path}; {nearest(name, list(self.profiles))}")


def load_profiles(path: Path) -> Profiles:
    """Read ``profiles.yaml``.

    Raises:
        ConfigFault: every fault of the file: unknown keys, wrong types, unknown or circular
            ``extends``, an attention mode without speculation, an unknown model or reference.
    """
    document = Document(path)
    _check_names(document)
    raw = document.validate(ProfilesFile)
    return Profiles(
        path=path,
        profiles={name: _profile(raw.profiles, name) for name in raw.profiles},
        models={name: _model(name, section) for name, section in raw.models.items()},
        default_model={str(kind): model for kind, model in raw.default_model.items()},
    )


def _check_names(document: Document) -> None:
    """Record names that lead nowhere, circles, and keys that contradict each other."""
    profiles, models = document.section("profiles"), document.section("models")
    if "profiles" in document.data and not profiles:
        document.fault(("profiles",), "holds no profile")
    for kind, model in document.section("default_model").items():
        _check_name(document, ("default_model", kind), "model", model, models)
    for name in models:
        given = {"synthetic", "target"} & set(document.section("models", name))
        if len(given) != 1:
            document.fault(("models", name), "give either 'synthetic' or 'target'")
    document.plain_names("profiles")
    for name in profiles:
        own = document.section("profiles", name)
        for key, known in (("model", models), ("reference", profiles), ("extends", profiles)):
            if own.get(key) is not None:
                word = "model" if key == "model" else "profile"
                _check_name(document, ("profiles", name, key), word, own[key], known)
        for variable in WHICH_GPUS:
            if variable in document.section("profiles", name, "env"):
                document.fault(
                    ("profiles", name, "env", variable),
                    "a run locks and watches the GPUs that the engine file or the shell selects: give it there",
                )
        chain = _ancestors(document, name)
        if chain[-1] in chain[:-1]:
            document.fault(("profiles", name, "extends"), f"goes round in a circle: {' -> '.join(chain)}")
        elif own.get("attention_mode") is not None and not any(
            document.section("profiles", ancestor).get("speculation") for ancestor in chain
        ):
            document.fault(
                ("profiles", name, "attention_mode"),
                "is the attention mode of speculative verification; this profile has no 'speculation'",
            )


def _check_name(
    document: Document, where: Location, word: str, name: object, known: Mapping[str, Any]
) -> None:
    if str(name) not in known:
        document.fault(where, f"no {word} '{name}'; {nearest(str(name), list(known))}")


def _ancestors(document: Document, name: str) -> list[str]:
    """The chain of ``extends`` from a profile on; a circle ends with the name that closes it."""
    chain = [name]
    while (parent := document.section("profiles", chain[-1]).get("extends")) is not None:
        chain.append(str(parent))
        if chain[-1] in chain[:-1]:
            break
    return chain


def _model(name: str, section: ModelSection) -> Model:
    pair = section.synthetic
    return Model(
        name=name,
        target=section.target,
        target_revision=section.target_revision,
        draft=section.draft,
        draft_revision=section.draft_revision,
        preset=pair.preset if pair else None,
        seed=pair.seed if pair else 0,
        accept_length=pair.accept_length if pair else None,
    )


def _profile(sections: Mapping[str, ProfileSection], name: str) -> Profile:
    chain = [sections[name]]
    while (parent := chain[-1].extends) is not None:
        chain.append(sections[parent])
    merged: dict[str, Any] = {}
    env: dict[str, str] = {}
    for section in reversed(chain):
        env |= section.env or {}
        merged |= {key: getattr(section, key) for key in section.model_fields_set}
    for key in ("extends", "env"):
        merged.pop(key, None)
    mode = merged.pop("attention_mode", None)
    section_speculation: SpeculationSection | None = merged.pop("speculation", None)
    speculation = Speculation(**section_speculation.model_dump()) if section_speculation else None
    if speculation is not None and mode is not None:
        speculation = replace(speculation, attention_mode=mode)
    merged["extra_flags"] = tuple(merged.get("extra_flags") or ())
    merged["engines"] = tuple(merged["engines"]) if merged.get("engines") else None
    values = {key: value for key, value in merged.items() if value is not None}
    return Profile(name=name, speculation=speculation, env=env, **values)
