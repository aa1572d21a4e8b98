"""Whatever our engine uses of TensorRT-LLM's API is there: by our table, and in a real tree.

PYTEST_MLPERF_TRTLLM_TREE=~/TensorRT-LLM pytest tests/contracts/test_tensorrt_llm.py
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
import yaml

from tests.contracts.signatures import Missing, Source
from tests.contracts.trees import (
    LLMAPI,
    READ,
    TABLE,
    VARIABLE,
    bound,
    problems,
    read_table,
    read_tree,
    series,
    tree_version,
    used,
    written,
)

HISTORY = read_table()


def test_every_name_that_is_used_is_in_each_version_of_the_table() -> None:
    for version, offered in HISTORY:
        assert problems(used(), version, offered, HISTORY) == []
    text = TABLE.read_text("utf-8")
    assert written(json.loads(text)["versions"]) == text


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no tree")
def test_every_name_that_is_used_is_in_the_real_tree() -> None:
    with Source.open(os.environ[VARIABLE]) as source:
        version, offered = tree_version(source), read_tree(source)

    assert problems(used(), version, offered, HISTORY) == []


VARIABLES = {
    "_requests": {
        "package": "tensorrt_llm",
        "llmapi": "tensorrt_llm.llmapi",
        "llm": "LLM",
        "output": "RequestOutput",
        "message": "RequestOutput",
        "completion": "CompletionOutput",
        "outputs": "CompletionOutput",
        "metrics": "RequestPerfMetrics",
        "timing": "TimingMetrics",
    },
    "": {"model": "LLM", "args": "LlmArgs", "package": "tensorrt_llm"},
}
"""Names of variables and attributes that hold TensorRT-LLM's objects, by module of our engine."""


def reads(module: str, holders: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the attributes that a module's text reads from TensorRT-LLM's objects."""
    name = ".".join(filter(None, ["pytest_mlperf.adapters.engines.tensorrt_llm", module]))
    names_by_class: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(Path(str(importlib.import_module(name).__file__)).read_text())):
        if not isinstance(node, ast.Attribute):
            continue
        holder = node.value.value if isinstance(node.value, ast.Subscript) else node.value
        last = holder.attr if isinstance(holder, ast.Attribute) else ""
        last = holder.id if isinstance(holder, ast.Name) else last
        if last in holders:
            names_by_class.setdefault(holders[last], set()).add(node.attr)
    return names_by_class


def test_the_list_of_what_is_read_is_complete() -> None:
    names_by_class: dict[str, set[str]] = {
        # Read by `async for` and `await`, and by name in a loop.
        "RequestOutput": {"__aiter__", "__await__"},
        "LlmArgs": {"max_batch_size"},
    }
    for module, holders in VARIABLES.items():
        for cls, names in reads(module, holders).items():
            names_by_class.setdefault(cls, set()).update(names)

    assert names_by_class == {cls: set(names) for cls, names in READ.items()}


def test_a_name_that_vanished_is_reported_with_its_last_version() -> None:
    history = [
        ("1.1", {"LLM()": {"model", "kv_cache_dtype"}, "LLM": {"shutdown"}}),
        ("1.2", {"LLM()": {"model"}, "LLM": {"shutdown"}, "LLM.generate_async": {"streaming"}}),
    ]
    used = {
        "LLM()": {"model", "kv_cache_dtype"},
        "LLM": {"shutdown", "close"},
        "LLM.generate_async": {"streaming"},
        "KvCacheConfig": {"dtype"},
    }

    assert problems(used, "1.2", dict(history)["1.2"], history) == [
        "TensorRT-LLM 1.2 has no KvCacheConfig(dtype=...) (in no older one either)",
        "TensorRT-LLM 1.2 has no LLM.close (in no older one either)",
        "TensorRT-LLM 1.2 has no LLM(kv_cache_dtype=...) (last in 1.1)",
    ]
    assert problems({"LLM()": {"gone"}}, "1.10", {}, [("1.9", {"LLM()": {"gone"}})]) == [
        "TensorRT-LLM 1.10 has no LLM(gone=...) (last in 1.9)"
    ]


TREE = {
    "tensorrt_llm/version.py": '__version__ = "1.4.0rc2"\n',
    "tensorrt_llm/__init__.py": '_LAZY = {"LLM": ".llmapi", "SamplingParams": ".sampling_params"}\n'
    "from .version import __version__\n",
    "tensorrt_llm/llmapi/__init__.py": "from .llm import LLM\n"
    "from .llm_args import KvCacheConfig\n",
    "tensorrt_llm/llmapi/llm.py": """
from ..executor import GenerationResult
class RequestOutput(GenerationResult):
    @property
    def prompt(self): ...
class BaseLLM:
    def __init__(self, model, skip_tokenizer_init: bool = False, **kwargs): self.args = kwargs
    def generate(self, inputs, use_tqdm=True): ...
    @nvtx("LLM.generate_async")
    def generate_async(self, inputs, sampling_params=None, *, streaming=False): ...
    def _secret(self): ...
class _TorchLLM(BaseLLM): ...
class LLM(_TorchLLM):
    def __init__(self, model, skip_tokenizer_init: bool = False, **kwargs): ...
""",
    "tensorrt_llm/llmapi/llm_args.py": """
class BaseLlmArgs(StrictBaseModel):
    model_config = {}
    max_batch_size: Optional[int] = Field(default=None)
    _private: int = PrivateAttr()
class TorchLlmArgs(BaseLlmArgs):
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    counted: ClassVar[int] = 0
    @property
    def quant_config(self): ...
class KvCacheConfig(StrictBaseModel):
    dtype: str = "auto"
class CudaGraphConfig(StrictBaseModel):
    enable_padding: bool = False
class TorchCompileConfig(StrictBaseModel):
    enable_fullgraph: bool = True
class SchedulerConfig(StrictBaseModel):
    capacity_scheduler_policy: CapacitySchedulerPolicy = 1
class CapacitySchedulerPolicy(StrEnum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
class LoadFormat(Enum):
    AUTO = 0
""",
    "tensorrt_llm/sampling_params.py": """
@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: Optional[int] = None
    _stop_word_ids: Optional[list] = field(default=None)
""",
    "tensorrt_llm/executor/__init__.py": "from .result import GenerationResult\n",
    "tensorrt_llm/executor/result.py": """
class CompletionOutput:
    token_ids: list
class GenerationResultBase:
    @property
    def outputs(self): ...
class GenerationResult(GenerationResultBase):
    def __await__(self): ...
""",
    "cpp/tensorrt_llm/nanobind/executor/request.cpp": """
    nb::class_<tle::RequestPerfMetrics::TimingMetrics>(m, "TimingMetrics")
        .def(nb::init<>())
        .def_rw("arrival_time", &tle::RequestPerfMetrics::TimingMetrics::arrivalTime);
    auto requestPerfMetrics = nb::class_<tle::RequestPerfMetrics>(m, "RequestPerfMetrics");
    requestPerfMetrics.def(nb::init<>())
        .def_rw("timing_metrics", &tle::RequestPerfMetrics::timingMetrics);
""",
}
"""As TensorRT-LLM's tree is laid out, with few names."""

FOUND = {
    "tensorrt_llm": {"LLM", "SamplingParams", "__version__", "llmapi"},
    LLMAPI: {"LLM", "KvCacheConfig"},
    "LLM()": {"model", "skip_tokenizer_init", "max_batch_size", "kv_cache_config"},
    "LLM": {"__init__", "args", "generate", "generate_async"},
    "LLM.generate": {"inputs", "use_tqdm"},
    "LLM.generate_async": {"inputs", "sampling_params", "streaming"},
    "LlmArgs": {"max_batch_size", "kv_cache_config", "quant_config", "model_config", "counted"},
    "KvCacheConfig": {"dtype"},
    "CudaGraphConfig": {"enable_padding"},
    "TorchCompileConfig": {"enable_fullgraph"},
    "SchedulerConfig": {"capacity_scheduler_policy"},
    "CapacitySchedulerPolicy": {"MAX_UTILIZATION"},
    "LoadFormat": {"AUTO"},
    "SamplingParams": {"end_id"},
    "RequestOutput": {"prompt", "outputs", "__await__"},
    "CompletionOutput": {"token_ids"},
    "RequestPerfMetrics": {"timing_metrics"},
    "TimingMetrics": {"arrival_time"},
}


def plant(folder: Path, tree: Mapping[str, str] = TREE) -> Path:
    """Write a tree."""
    for name, text in tree.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return folder


def test_a_tree_is_read_without_running_it(tmp_path: Path) -> None:
    archive = tmp_path / "tree.zip"
    with zipfile.ZipFile(archive, "w") as file:  # as that of a release: all in one folder
        for name, text in TREE.items():
            file.writestr(f"TensorRT-LLM-1.4.0rc2/{name}", text)
    for tree in (plant(tmp_path / "tree"), archive):
        with Source.open(tree) as source:
            assert tree_version(source) == "1.4.0rc2"
            assert read_tree(source) == FOUND
    assert series("1.4.0rc2") == "1.4"


def test_a_tree_without_an_expected_file_or_name_is_reported(tmp_path: Path) -> None:
    """A wheel declares the compiled part in a stub."""
    tree = plant(tmp_path, {"tensorrt_llm/version.py": "VERSION = 1\n"})

    with pytest.raises(Missing, match="names no version"):
        tree_version(Source.open(tree))
    with pytest.raises(Missing, match=r"has no tensorrt_llm/llmapi/llm\.py"):
        read_tree(Source.open(tree))
    with pytest.raises(Missing, match="TimingMetrics is in none of cpp/"):
        bound(Source.open(tree), "TimingMetrics")
    stub = "class TimingMetrics:\n    arrival_time: timedelta\n    def __init__(self): ...\n"
    plant(tmp_path, {"tensorrt_llm/bindings/executor.pyi": stub})
    assert bound(Source.open(tree), "TimingMetrics") == {"arrival_time", "__init__"}


ROOT = Path(__file__).parents[2]


def refresh(tree: Path, table: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "refresh_contracts.py")]
    command += ["--tensorrt-llm", str(tree), "--table", str(table)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.process
def test_a_tree_adds_its_series_or_replaces_it_and_anything_else_is_refused(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table.json"
    shutil.copy(TABLE, table)
    old = read_table(table)

    refused = refresh(tmp_path, table)
    assert refused.returncode == 2
    assert "has no tensorrt_llm/version.py" in refused.stderr
    assert table.read_text("utf-8") == TABLE.read_text("utf-8")

    added = refresh(plant(tmp_path / "tree"), table)
    assert added.returncode == 0, added.stderr
    assert read_table(table) == [*old, ("1.4", FOUND)]
    assert f"TensorRT-LLM 1.4.0rc2: {len(FOUND)} classes read" in added.stdout
    assert "TimingMetrics: gone: first_scheduled_time, first_token_time" in added.stdout
    assert "TensorRT-LLM 1.4.0rc2 has no LLM.shutdown (last in 1.2)" in added.stdout

    tree = plant(tmp_path / "tree", {**TREE, "tensorrt_llm/version.py": '__version__ = "1.2.9"\n'})
    refresh(tree, table)
    assert read_table(table) == [("1.2", FOUND), ("1.4", FOUND)]
    text = table.read_text("utf-8")
    refresh(tree, table)
    assert table.read_text("utf-8") == text


def test_the_workflow_fetches_every_file_that_is_read() -> None:
    text = (ROOT / ".github" / "workflows" / "contracts.yml").read_text("utf-8")
    steps = yaml.safe_load(text)["jobs"]["tensorrt_llm"]["steps"]
    (script,) = [step["run"] for step in steps if "sparse-checkout" in step.get("run", "")]
    named = script.partition("sparse-checkout set")[2].replace("\\", " ").split()
    here = {PurePosixPath(name) for name in named}
    here |= {parent for name in named for parent in PurePosixPath(name).parents}

    for file in TREE:
        assert PurePosixPath(file).parent in here, file
