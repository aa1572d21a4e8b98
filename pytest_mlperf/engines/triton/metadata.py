"""What a server says of itself and of a model, checked: KServe v2 metadata, Triton's configuration.

KServe v2, "Predict Protocol - Version 2": names, datatypes, and shapes in which -1 is any length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.tasks.graph import NUMPY, Tensor

TYPES = {
    "BOOL": "tensor(bool)",
    "UINT8": "tensor(uint8)",
    "INT8": "tensor(int8)",
    "INT32": "tensor(int32)",
    "INT64": "tensor(int64)",
    "FP16": "tensor(float16)",
    "FP32": "tensor(float)",
    "FP64": "tensor(double)",
}
"""Datatypes that the tasks know, and what they call them; others stay as the server says."""

BINARY = "binary_tensor_data"
"""The extension by which HTTP carries arrays as bytes; without, they are text in JSON."""

CACHED = "response_cache"

SHOWN_CONFIG = ("backend", "instance_group", "dynamic_batching", "optimization")
"""Parts of a configuration that decide speed; the rest is in its hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
        name: Of the software.
        version: Of the software.
        extensions: Of the protocol, by name.
    """

    name: str
    version: str
    extensions: frozenset[str]

    @classmethod
    def of(cls, said: Mapping[str, Any], where: str) -> Self:
        """Read the server's metadata.

        Raises:
            RunError: It is none.
        """
        extensions = said.get("extensions") or []
        if not isinstance(said.get("name"), str) or not isinstance(extensions, list):
            raise RunError(
                "engine",
                f"{where}: what answers there is no KServe v2 server: its metadata is "
                f"{_short(said)}, without a name; correct url",
            )
        return cls(
            name=said["name"],
            version=str(said.get("version") or ""),
            extensions=frozenset(map(str, extensions)),
        )

    @property
    def sends_bytes(self) -> bool:
        """Whether HTTP may carry arrays as bytes."""
        return BINARY in self.extensions

    def describe(self) -> Mapping[str, str]:
        """Return what belongs to the fingerprint."""
        return {
            "server": self.name,
            "server_version": self.version,
            "server_extensions": ",".join(sorted(self.extensions)),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What a server says of a model.

    Attributes:
        inputs: What it takes, the batch first.
        outputs: What it gives.
        versions: Those that the server has, as text.
        platform: What runs it, in the server's words.
        config: Triton's configuration; {} from other servers.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    versions: str
    platform: str
    config: Mapping[str, Any]

    @classmethod
    def of(cls, said: Mapping[str, Any], config: Mapping[str, Any], where: str) -> Self:
        """Read a model's metadata and configuration.

        Raises:
            RunError: They describe no model that this engine can run.
        """
        versions = said.get("versions") or []
        if not isinstance(versions, list):
            versions = [versions]
        facts = cls(
            inputs=_tensors(said, "inputs", where),
            outputs=_tensors(said, "outputs", where),
            versions=",".join(map(str, versions)),
            platform=str(said.get("platform") or ""),
            config=config,
        )
        for each in facts.inputs:
            if each.type not in NUMPY:
                raise RunError(
                    "engine",
                    f"{where}: its input {each.name!r} is {each.type}; this engine sends "
                    f"{', '.join(TYPES)}",
                )
            if not each.shape:
                raise RunError("engine", f"{where}: its input {each.name!r} has no batch dimension")
        return facts

    @property
    def largest_batch(self) -> int | None:
        """Samples in one request at most, where the server says so."""
        said = self.config.get("max_batch_size")
        return said if type(said) is int and said > 0 else None

    def check(self, batch_size: int, where: str) -> None:
        """Refuse a batch that is too large, and a server that answers from memory.

        Raises:
            RunError: Says which.
        """
        largest = self.largest_batch
        if largest is not None and batch_size > largest:
            raise RunError(
                "engine",
                f"{where}: its configuration has max_batch_size = {largest}, but batch_size = "
                f"{batch_size}; make both fit",
            )
        cache = self.config.get(CACHED)
        if isinstance(cache, Mapping) and cache.get("enable"):
            raise RunError(
                "engine",
                f"{where}: its configuration has {CACHED} enabled, so repeated samples would be "
                "answered from memory and not by the model; switch it off",
            )

    def describe(self) -> Mapping[str, str]:
        """Return what belongs to the fingerprint."""
        facts = {"model_versions": self.versions, "platform": self.platform}
        if not self.config:
            return facts
        text = json.dumps(self.config, sort_keys=True)
        shown = {
            f"config.{name}": value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for name in SHOWN_CONFIG
            if (value := self.config.get(name))
        }
        return {
            **facts,
            **shown,
            "config.max_batch_size": str(self.config.get("max_batch_size", 0)),
            "config_sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        }


def _tensors(said: Mapping[str, Any], what: str, where: str) -> tuple[Tensor, ...]:
    """Return the inputs or outputs that metadata lists."""
    listed = said.get(what)
    if not isinstance(listed, list) or not listed:
        raise RunError(
            "engine",
            f"{where}: its metadata names no {what}, which decide what is sent and asked for; "
            "complete the model's settings on the server",
        )
    found = []
    for each in listed:
        try:
            kind = str(each["datatype"])
            # Over gRPC, 64-bit numbers come as text.
            lengths = [int(length) for length in each.get("shape", ())]
            name = each["name"]
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
            raise RunError(
                "engine",
                f"{where}: its metadata has {what} that cannot be read: {_short(each)}; expected "
                "a name, a datatype and a shape of whole numbers",
            ) from error
        shape = tuple(length if length >= 0 else None for length in lengths)
        found.append(Tensor(name=str(name), type=TYPES.get(kind, kind), shape=shape))
    return tuple(found)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
