"""Which names of vLLM's API there are, by version: reads a source tree or wheel into the table.

    python -m tests.contracts.vllm_table vllm-0.33.0-….whl

`vllm_api.json` has, for each thing below, every name with the first and the last of the versions
read in which it is there. A name whose last version is not the newest one read has vanished since.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.contracts.signatures import Missing, Source

FILE = Path(__file__).with_name("vllm_api.json")

ABOUT = (
    "Names of vLLM's API by the thing they belong to: [first, last] of the versions read, as "
    "tests/contracts/vllm_table.py finds them in its wheels."
)

Reader = Callable[[Source], set[str]]
Table = dict[str, Any]


def _parameters(file: str, function: str) -> Reader:
    return lambda source: set(source.parameters(file, function)) - {"args", "kwargs"}


def _fields(file: str, cls: str) -> Reader:
    return lambda source: set(source.fields(file, cls))


def _attributes(file: str, cls: str) -> Reader:
    return lambda source: {
        name for name in source.attributes(file, cls) if not name.startswith("_")
    }


def _exported(file: str) -> Reader:
    """Read which of some names a module defines or imports at its top."""

    def read(source: Source) -> set[str]:
        names: set[str] = set()
        for node in source.tree(file).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
            if isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
        return names & ENTRIES

    return read


ENTRIES = {
    *("AsyncEngineArgs", "AsyncLLM", "EngineArgs", "ExplicitEncoderDecoderPrompt", "LLM"),
    *("LLMEngine", "RequestOutputKind", "SamplingParams", "TextPrompt", "TokensPrompt"),
    *("get_metrics_snapshot", "tokens_input"),
}
"""What an engine may start from."""

ENGINE, LLM = "vllm/v1/engine/async_llm.py", "vllm/entrypoints/llm.py"
SAMPLING, RENDERER = "vllm/sampling_params.py", "vllm/renderers/base.py"

THINGS: Mapping[str, Reader] = {
    "vllm.engine.arg_utils": _exported("vllm/engine/arg_utils.py"),
    "vllm.entrypoints.llm": _exported(LLM),
    "vllm.inputs": _exported("vllm/inputs/__init__.py"),
    "vllm.sampling_params": _exported(SAMPLING),
    "vllm.v1.engine.async_llm": _exported(ENGINE),
    "vllm.v1.metrics.reader": _exported("vllm/v1/metrics/reader.py"),
    "AsyncEngineArgs()": _fields("vllm/engine/arg_utils.py", "AsyncEngineArgs"),
    "SamplingParams()": _fields(SAMPLING, "SamplingParams"),
    "AsyncLLM.from_engine_args()": _parameters(ENGINE, "AsyncLLM.from_engine_args"),
    "AsyncLLM.generate()": _parameters(ENGINE, "AsyncLLM.generate"),
    "AsyncLLM.shutdown()": _parameters(ENGINE, "AsyncLLM.shutdown"),
    "LLM()": _parameters(LLM, "LLM.__init__"),
    "LLM.generate()": _parameters(LLM, "LLM.generate"),
    "tokens_input()": _parameters("vllm/inputs/engine.py", "tokens_input"),
    "BaseRenderer": _attributes(RENDERER, "BaseRenderer"),
    "BaseRenderer.render_cmpl_async()": _parameters(RENDERER, "BaseRenderer.render_cmpl_async"),
    "AsyncLLM": _attributes(ENGINE, "AsyncLLM"),
    "LLM": _attributes(LLM, "LLM"),
    "LLMEngine": _attributes("vllm/v1/engine/llm_engine.py", "LLMEngine"),
    "EngineCoreClient": _attributes("vllm/v1/engine/core_client.py", "EngineCoreClient"),
    "RequestOutputKind": _attributes(SAMPLING, "RequestOutputKind"),
    "RequestOutput": _attributes("vllm/outputs.py", "RequestOutput"),
    "CompletionOutput": _attributes("vllm/outputs.py", "CompletionOutput"),
    "RequestStateStats": _attributes("vllm/v1/metrics/stats.py", "RequestStateStats"),
    "TokensPrompt": _fields("vllm/inputs/__init__.py", "TokensPrompt"),
    "ExplicitEncoderDecoderPrompt": _fields(
        "vllm/inputs/__init__.py", "ExplicitEncoderDecoderPrompt"
    ),
    "model_config": _fields("vllm/config/model.py", "ModelConfig"),
    "scheduler_config": _fields("vllm/config/scheduler.py", "SchedulerConfig"),
    "cache_config": _fields("vllm/config/cache.py", "CacheConfig"),
    "device_config": _fields("vllm/config/device.py", "DeviceConfig"),
}
"""How each thing is read; with () what a call takes, with dots what a module has."""


def read(source: Source) -> dict[str, set[str]]:
    """Return the names of all things in a source; a thing that is not there has none."""
    names_by_thing = {}
    for thing, reader in THINGS.items():
        try:
            names_by_thing[thing] = reader(source)
        except Missing:
            names_by_thing[thing] = set()
    return names_by_thing


def version(source: Source) -> str:
    """Return the version that a source says it is."""
    for node in ast.walk(source.tree("vllm/_version.py")):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "__version__" in names:
                return str(node.value.value)
    raise Missing(f"{source.path} does not say its version")


def order(text: str) -> tuple[int, ...]:
    """Return what versions are ordered by; local parts and pre-releases are left out."""
    return tuple(int(part) for part in text.partition("+")[0].split(".")[:3] if part.isdigit())


def load() -> Table:
    """Return the table."""
    table: Table = json.loads(FILE.read_text("utf-8"))
    return table


def names(table: Table, thing: str, at: str) -> set[str]:
    """Return the names of a thing in one of the versions read."""
    return {
        name
        for name, (first, last) in table["names"][thing].items()
        if order(first) <= order(at) <= order(last)
    }


def add(table: Table, at: str, names_by_thing: Mapping[str, set[str]]) -> Table:
    """Return a table with one version more."""
    versions = sorted({*table["read"], at}, key=order)
    merged: dict[str, dict[str, list[str]]] = {}
    for thing in sorted({*table["names"], *names_by_thing}):
        spans: dict[str, list[str]] = {
            name: list(span) for name, span in table["names"].get(thing, {}).items()
        }
        for name in sorted(names_by_thing.get(thing, ())):
            span = spans.get(name, [at, at])
            spans[name] = [min(span[0], at, key=order), max(span[1], at, key=order)]
        merged[thing] = dict(sorted(spans.items()))
    return {"about": ABOUT, "read": versions, "names": merged}


def write(table: Table) -> None:
    """Write the table, one name per line."""
    lines = ["{", f'  "about": {json.dumps(table["about"])},']
    lines += [f'  "read": {json.dumps(table["read"])},', '  "names": {']
    things = [
        f"    {json.dumps(thing)}: {{\n"
        + ",\n".join(
            f"      {json.dumps(name)}: {json.dumps(span)}" for name, span in known.items()
        )
        + "\n    }"
        if known
        else f'    "{thing}": {{}}'
        for thing, known in table["names"].items()
    ]
    FILE.write_text("\n".join(lines) + "\n" + ",\n".join(things) + "\n  }\n}\n", "utf-8")


def main(paths: list[str]) -> None:
    """Read these wheels or source trees into the table."""
    table = load() if FILE.is_file() else {"read": [], "names": {}}
    for path in paths:
        with Source.open(path) as source:
            at = version(source)
            table = add(table, at, read(source))
            print(f"{at}: {path}")
    write(table)


if __name__ == "__main__":
    main(sys.argv[1:])
