"""What TensorRT-LLM offers, by version and from its sources; what our engine uses of it.

Names are kept by class: "LLM()" are the arguments of its constructor, "LLM.generate_async" those of
a method, "LLM" the attributes of its instances.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.tensorrt_llm import (
    SCHEDULER_POLICIES,
    TensorRtLlmOptions,
    llm_arguments,
)
from pytest_mlperf.adapters.engines.tensorrt_llm._requests import sampling_arguments
from tests.contracts.signatures import Missing, Source

TABLE = Path(__file__).with_name("tensorrt_llm.json")

VARIABLE = "PYTEST_MLPERF_TRTLLM_TREE"
"""Names a folder, wheel or zip file with the sources of TensorRT-LLM."""

LLMAPI = "tensorrt_llm.llmapi"
LLM = "tensorrt_llm/llmapi/llm.py"
ARGUMENTS = "tensorrt_llm/llmapi/llm_args.py"
RESULT = "tensorrt_llm/executor/result.py"
BINDINGS = (
    "cpp/tensorrt_llm/nanobind/executor/request.cpp",
    "cpp/tensorrt_llm/pybind/executor/request.cpp",
    "tensorrt_llm/bindings/executor/__init__.pyi",
    "tensorrt_llm/bindings/executor.pyi",
)
"""Where the classes of its compiled part are declared: in its sources, or in a wheel."""

MODULES: Mapping[str, str] = {
    "tensorrt_llm": "tensorrt_llm/__init__.py",
    LLMAPI: "tensorrt_llm/llmapi/__init__.py",
}

READ: Mapping[str, tuple[str, ...]] = {
    "tensorrt_llm": ("LLM", "SamplingParams", "__version__", "llmapi"),
    "tensorrt_llm.llmapi": ("TorchLlmArgs",),
    "LLM": ("args", "generate_async", "shutdown"),
    "LlmArgs": ("max_batch_size", "max_num_tokens", "max_seq_len"),
    "RequestOutput": ("outputs", "__aiter__", "__await__"),
    "CompletionOutput": ("token_ids", "finish_reason", "request_perf_metrics"),
    "RequestPerfMetrics": ("timing_metrics",),
    "TimingMetrics": ("arrival_time", "first_token_time"),
}
"""Attributes of its modules and objects that the engine reads or calls, by module or class."""

CALLED: Mapping[str, tuple[str, ...]] = {
    "LLM.generate_async": ("inputs", "sampling_params", "streaming"),
}
"""Arguments of its methods that the engine gives."""

CONFIGURATIONS = {
    "kv_cache_config": "KvCacheConfig",
    "cuda_graph_config": "CudaGraphConfig",
    "scheduler_config": "SchedulerConfig",
}
"""Arguments of LLM that the engine gives as tables, and the classes that pydantic makes of them."""

LISTED: Mapping[str, Set[str]] = {
    "tensorrt_llm": {"LLM", "SamplingParams", "__version__", "llmapi"},
    LLMAPI: {
        *("CapacitySchedulerPolicy", "CudaGraphConfig", "KvCacheConfig", "LLM", "MoeConfig"),
        *("QuantConfig", "SamplingParams", "SchedulerConfig", "TorchCompileConfig", "TorchLlmArgs"),
    },
}
"""What is looked for in a package; it may bring much more."""

OPTIONS: Mapping[str, Any] = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "max_batch_size": 64,
    "max_num_tokens": 4096,
    "max_seq_len": 2048,
    "kv_cache_dtype": "fp8",
    "kv_cache_free_gpu_memory_fraction": 0.8,
    "tokens_per_block": 64,
    "enable_block_reuse": True,
    "cuda_graphs": True,
    "cuda_graph_padding": True,
    "scheduler_policy": "max_utilization",
    "enable_chunked_prefill": True,
    "load_format": "dummy",
    "attn_backend": "FLASHINFER",
    "stream_interval": 2,
    "stream": True,
    "llm": {},
}
"""Every option of the engine, each with a value of which something is made."""

Names = Mapping[str, Set[str]]
HEAD = ("version", "source")


def used() -> Names:
    """Return all that the engine uses, whatever a suite says."""
    names_by_class: dict[str, set[str]] = {}
    for graphs in (True, [1, 8]):
        for policy in SCHEDULER_POLICIES:
            options = TensorRtLlmOptions(
                **{**OPTIONS, "cuda_graphs": graphs, "scheduler_policy": policy}
            )
            arguments = llm_arguments(Path("model"), "fp8", options)
            names_by_class.setdefault("LLM()", set()).update(arguments)
            for argument, cls in CONFIGURATIONS.items():
                names_by_class.setdefault(cls, set()).update(arguments[argument])
            members = names_by_class.setdefault("CapacitySchedulerPolicy", set())
            members.add(arguments["scheduler_config"]["capacity_scheduler_policy"])
    generation = Generation(
        max_new_tokens=8, min_new_tokens=1, num_beams=1, ignore_eos=False, eos=(2, 3)
    )
    names_by_class["SamplingParams"] = set(sampling_arguments(generation))
    for cls, names in (*READ.items(), *CALLED.items()):
        names_by_class.setdefault(cls, set()).update(names)
    return names_by_class


def problems(
    used: Names, version: str, offered: Names, history: Sequence[tuple[str, Names]]
) -> list[str]:
    """Return a sentence for each name that is used and that a version does not offer."""
    sentences = []
    for cls in sorted(used):
        for name in sorted(used[cls] - offered.get(cls, frozenset())):
            older_versions = [each for each, names in history if name in names.get(cls, ())]
            older_versions = [each for each in older_versions if _order(each) < _order(version)]
            last = (
                f"last in {max(older_versions, key=_order)}"
                if older_versions
                else "in no older one either"
            )
            sentences.append(f"TensorRT-LLM {version} has no {_spelt(cls, name)} ({last})")
    return sentences


def read_table(path: Path = TABLE) -> list[tuple[str, Names]]:
    """Return the names of each version, oldest first."""
    table = json.loads(path.read_text("utf-8"))
    return [
        (each["version"], {cls: set(names) for cls, names in each["names"].items()})
        for each in table["versions"]
    ]


def series(version: str) -> str:
    """Return the series of a version: 1.2.1 and 1.2.0rc3 belong to 1.2."""
    return ".".join(re.findall(r"\d+", version)[:2])


def tree_version(source: Source) -> str:
    """Return the version that a tree says it is."""
    match = re.search(r'__version__ = "([^"]+)"', source.text("tensorrt_llm/version.py"))
    if match is None:
        raise Missing(f"{source.path}: tensorrt_llm/version.py names no version")
    return match[1]


def read_tree(source: Source) -> dict[str, set[str]]:
    """Return the names of the table that a tree has."""
    explicit = set(source.parameters(LLM, "LLM.__init__"))
    fields = set(source.fields(ARGUMENTS, "TorchLlmArgs"))
    names_by_class = {
        # The constructor takes the fields of its arguments' model as further keywords.
        "LLM()": (explicit | fields) - {"kwargs"},
        "LLM": source.attributes(LLM, "LLM"),
        "LlmArgs": source.attributes(ARGUMENTS, "TorchLlmArgs"),
        "SamplingParams": set(source.fields("tensorrt_llm/sampling_params.py", "SamplingParams")),
        "RequestOutput": source.attributes(LLM, "RequestOutput")
        | source.attributes(RESULT, "GenerationResult"),
        "CompletionOutput": source.attributes(RESULT, "CompletionOutput"),
    }
    for method in ("generate", "generate_async"):
        names_by_class[f"LLM.{method}"] = set(source.parameters(LLM, f"LLM.{method}"))
    for config in ("KvCacheConfig", "CudaGraphConfig", "TorchCompileConfig", "SchedulerConfig"):
        names_by_class[config] = set(source.fields(ARGUMENTS, config))
    for enumeration in ("CapacitySchedulerPolicy", "LoadFormat"):
        names_by_class[enumeration] = source.attributes(ARGUMENTS, enumeration)
    for cls in ("RequestPerfMetrics", "TimingMetrics"):
        names_by_class[cls] = bound(source, cls)
    for module, file in MODULES.items():
        names_by_class[module] = exported(source, file) & LISTED[module]
    return {
        cls: {name for name in names if not re.fullmatch(r"_[^_].*", name)}
        for cls, names in names_by_class.items()
    }


def exported(source: Source, file: str) -> set[str]:
    """Return the names that a package's __init__.py imports, assigns, or names in a text.

    Texts count because newer versions import lazily, by a table of names; so do the modules next to
    the file, which can be imported by name.
    """
    names: set[str] = set()
    for node in ast.walk(source.tree(file)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    folder = file.rpartition("/")[0]
    return names | ({"llmapi"} if source.has(f"{folder}/llmapi/__init__.py") else set())


def bound(source: Source, cls: str) -> set[str]:
    """Return the attributes of a class of TensorRT-LLM's compiled part."""
    for file in BINDINGS:
        read = _declared if file.endswith(".cpp") else Source.attributes
        if source.has(file) and (names := read(source, file, cls)):
            return names
    raise Missing(f"{source.path}: {cls} is in none of {', '.join(BINDINGS)}")


def _declared(source: Source, file: str, cls: str) -> set[str]:
    """Read a C++ declaration: the statement that begins with the class, or with its variable."""
    variable = cls[0].lower() + cls[1:]
    statements = re.findall(
        rf'(?:"{cls}"\)|\b{variable}\s*\.)[^;]*;', source.text(file), flags=re.DOTALL
    )
    return {
        name
        for statement in statements
        for name in re.findall(r'\.def_(?:rw|ro|prop_ro|readwrite|readonly)\("(\w+)"', statement)
    }


def _spelt(cls: str, name: str) -> str:
    if cls == "LLM()" or cls.endswith(("Config", "Params")):
        return f"{cls.removesuffix('()')}({name}=...)"
    return f"{cls}({name}=...)" if "." in cls else f"{cls}.{name}"


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def written(versions: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a table: a line for each class, so that a change can be reviewed."""
    entries = []
    for version in versions:
        names = [
            f"        {json.dumps(cls)}: {json.dumps(sorted(each))}"
            for cls, each in version["names"].items()
        ]
        head = [f"      {json.dumps(key)}: {json.dumps(version[key])}," for key in HEAD]
        lines = ["    {", *head, '      "names": {', ",\n".join(names), "      }", "    }"]
        entries.append("\n".join(lines))
    return "\n".join(["{", '  "versions": [', ",\n".join(entries), "  ]", "}", ""])
