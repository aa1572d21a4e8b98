"""Test that a run starts if and only if doctor calls it ready: engines x missing parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_mlperf import registry
from pytest_mlperf.suite.libraries import declared_libraries, extras, install_command
from tests.cli.lab import ROOT
from tests.cli.readiness_driver import HIDDEN

NEEDED = ("onnxruntime", "torch", "transformers", "diffusers", "httptools", "tritonclient")

TINY = ROOT / "suites/tiny"

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
model = "{model}"
dataset = {{ {dataset} }}
{scorer}
[[engines]]
use = "{use}"
precision = "{precision}"
{where}
options = {{ {options} }}
[[scenarios]]
name = "Offline"
"""

RESNET = f"{TINY}/resnet50/resnet50-tiny.onnx"
IMAGES = (
    f'use = "imagenet", path = "{TINY}/resnet50/data/imagenet", size = 32, crop = 1.0, classes = 10'
)
LLAMA = f"{TINY}/llama2-70b/model"
PROMPTS = f'use = "openorca", path = "{TINY}/llama2-70b/data/open_orca/open_orca_tiny.pkl.gz"'
SDXL = f"{TINY}/stable-diffusion-xl/model"
CAPTIONS = f'use = "coco_captions", path = "{TINY}/stable-diffusion-xl/data/coco2014", size = 64'
NUMBERS = 'use = "synthetic"'
ON_A_GPU = 'accelerators = ["H200"]'
SERVED = 'served_model = "resnet", batch_size = 1, '


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A suite of one engine."""

    use: str
    model: str = RESNET
    dataset: str = IMAGES
    options: str = ""
    precision: str = "fp32"
    where: str = ""
    scorer: str = ""
    lacks: str = field(default="", compare=False)
    """A word of the reason why it cannot run; "": it can."""

    def write(self, folder: Path, name: str) -> Path:
        values = {key: value for key, value in vars(self).items() if key != "lacks"}
        file = folder / name
        file.write_text(SUITE.format(**values), "utf-8")
        return file


def llama(use: str, options: str = "max_new_tokens = 4", **options_of_entry: str) -> Entry:
    return Entry(use=use, model=LLAMA, dataset=PROMPTS, options=options, **options_of_entry)


COMPLETE = {
    "null": Entry(use="null", dataset=NUMBERS),
    "onnxruntime": Entry(use="onnxruntime"),
    "torch": llama("torch", "max_new_tokens = 4, threads = 1"),
    "torch-module": Entry(
        use="torch-module", dataset=NUMBERS, options='factory = "a_factory:identity"'
    ),
    "openai": llama("openai", 'url = "{url}", max_new_tokens = 4'),
}
"""Each starts here, by itself or against a server."""

LACKING = {
    "no model": Entry(use="onnxruntime", model="gone.onnx", lacks="gone.onnx"),
    "no data": Entry(use="null", dataset='use = "imagenet", path = "gone"', lacks="gone"),
    "no python": Entry(use="null", where='python = "gone/bin/python"', lacks="gone/bin/python"),
    "no command": Entry(use="null", where='command = ["gone-program"]', lacks="gone-program"),
    "no CUDA in onnxruntime": Entry(
        use="onnxruntime", options='providers = ["cuda"]', where=ON_A_GPU, lacks="onnxruntime-gpu"
    ),
    "no TensorRT": Entry(use="tensorrt", where=ON_A_GPU, lacks="TensorrtExecutionProvider"),
    "no CUDA in torch": llama("torch", 'device = "cuda"', where=ON_A_GPU, lacks="CUDA"),
    "no kernels": llama("torch", "", precision="fp8", lacks="compute capability"),
    "no server for openai": llama(
        "openai", 'url = "http://127.0.0.1:1", max_new_tokens = 4', lacks="127.0.0.1:1"
    ),
    "no server for triton": Entry(
        use="triton", options=SERVED + 'url = "127.0.0.1:1"', lacks="127.0.0.1:1"
    ),
    "no program for openai": llama(
        "openai", 'serve = ["gone-server", "{port}"]', lacks="gone-server"
    ),
    "no program for triton": Entry(
        use="triton", options=SERVED + 'serve = ["gone-server", "{port}"]', lacks="gone-server"
    ),
}
"""All libraries are here, and something else is not."""

WITHOUT_LIBRARIES = {
    **COMPLETE,
    "tensorrt": Entry(use="tensorrt", where=ON_A_GPU),
    "torch-diffusion": Entry(use="torch-diffusion", model=SDXL, dataset=CAPTIONS),
    "tensorrt_llm": llama("tensorrt_llm"),
    "vllm": llama("vllm"),
    "triton": Entry(use="triton", options=SERVED + 'url = "localhost:1"'),
    "images": Entry(use="null"),
    "rouge": Entry(use="null", model=LLAMA, dataset=NUMBERS, scorer='scorer = { use = "rouge" }'),
    "map": Entry(use="null", dataset=NUMBERS, scorer='scorer = { use = "map" }'),
    "builder": llama(
        "torch", where='build = { use = "torchao", recipe = "int8" }', precision="int8"
    ),
}
LIBRARIES = {
    "onnxruntime": "onnxruntime",
    "tensorrt": "onnxruntime",
    "torch": "torch",
    "torch-module": "torch",
    "torch-diffusion": "diffusers",
    "tensorrt_llm": "tensorrt_llm",
    "vllm": "vllm",
    "openai": "httptools",
    "triton": "tritonclient",
    "images": "PIL",
    "rouge": "rouge_score",
    "map": "pycocotools",
    "builder": "torchao",
}
"""What each of them cannot do without."""

AWAY = f" not installed in {sys.executable}: "
"""Between what is needed and what brings it."""

WITHOUT_MORE = {
    "int8": (llama("torch", "", precision="int8"), "torchao"),
    "continuous": (llama("torch", ""), "psutil"),
    "dlrm": (
        Entry(use="torch-module", model=f"{TINY}/dlrm-v2/model", options='factory = "dlrm-v2"'),
        "safetensors",
    ),
    "tokenizer": (llama("openai", 'url = "{url}"'), "transformers"),
    "http": (Entry(use="triton", options=SERVED + 'url = "localhost:1"'), "geventhttpclient"),
    "decoding": (
        Entry(use="null", model=LLAMA, dataset=NUMBERS, scorer='scorer = { use = "gsm8k" }'),
        "tokenizers",
    ),
}
"""What only some options need; the engine's own library is here."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    for name in NEEDED:
        pytest.importorskip(name)
    from tests.adapters.engines.openai.echo import echo_server

    with echo_server(4, service_ms=0) as server_url:
        yield server_url


def ask(
    folder: Path, entries: Mapping[str, Entry], url: str, *, hidden: Iterable[str] = ()
) -> dict[str, tuple[str, str, str]]:
    """Return state, reason and how a run ends, by name, with some libraries not installed."""
    (folder / "a_factory.py").write_text(
        "def identity(model):\n    import torch\n    return torch.nn.Identity()\n", "utf-8"
    )
    (folder / "sitecustomize.py").write_text(
        "from tests.cli.readiness_driver import hide\nhide()\n", "utf-8"
    )
    path = [str(folder), str(ROOT)]
    files = {
        entry.write(folder, f"{number}.mlperf.toml").name: name
        for number, (name, entry) in enumerate(entries.items())
    }
    for file in files:
        text = (folder / file).read_text("utf-8").replace("{url}", url)
        (folder / file).write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/cli/readiness_driver.py"), *files],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), HIDDEN: ",".join(hidden)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    states = [json.loads(line[6:]) for line in done.stdout.splitlines() if line[:6] == "state "]
    return {files[name]: (state, why, ends) for name, state, why, ends in states}


LIGHT = ("null", "no model", "no data", "no python", "no command")
"""Engines and parts that need no large library."""


def check_readiness(folder: Path, entries: Mapping[str, Entry], url: str = "") -> None:
    for name, (state, reasons, ends) in ask(folder, entries, url).items():
        lacks = entries[name].lacks
        if lacks:
            assert (state, lacks in reasons, lacks in ends) == ("missing", True, True), (
                name,
                reasons,
                ends,
            )
        else:
            assert (state, reasons, ends) == ("ready", "", ""), name


@pytest.mark.process
def test_light_engines_start_where_they_are_ready_and_lack_nothing(tmp_path: Path) -> None:
    every = {**COMPLETE, **LACKING}
    entries = {name: replace(every[name], use="null") for name in LIGHT}
    hidden = ask(tmp_path, {"images": WITHOUT_LIBRARIES["images"]}, "", hidden={"PIL"})
    check_readiness(tmp_path, entries)
    state, reasons, ends = hidden["images"]
    assert (state, "PIL" in reasons, AWAY in reasons, AWAY in ends) == ("missing", True, True, True)


@pytest.mark.nightly
@pytest.mark.process
def test_ready_cases_start_and_incomplete_ones_do_not(tmp_path: Path, url: str) -> None:
    check_readiness(tmp_path, {**COMPLETE, **LACKING}, url)


@pytest.mark.nightly
@pytest.mark.process
def test_an_engine_without_its_library_does_not_start(tmp_path: Path, url: str) -> None:
    """The sentence says which library, in which Python, and what brings it."""
    states = ask(tmp_path, WITHOUT_LIBRARIES, url, hidden=set(LIBRARIES.values()))
    assert states["null"] == ("ready", "", "")
    for name, library in LIBRARIES.items():
        state, reasons, ends = states[name]
        assert state == "missing", (name, state, reasons)
        needed, cures = zip(*(line.split(AWAY, 1) for line in reasons.splitlines()), strict=True)
        assert library in " ".join(needed), name
        assert all(cures), name
        assert AWAY in ends, name


@pytest.mark.nightly
@pytest.mark.process
def test_requirements_of_options_are_looked_for_too(tmp_path: Path, url: str) -> None:
    entries = {name: entry for name, (entry, _) in WITHOUT_MORE.items()}
    hidden = {library for _, library in WITHOUT_MORE.values()} - {"transformers", "safetensors"}
    states = {
        **ask(
            tmp_path,
            {n: entries[n] for n in ("int8", "continuous", "http", "decoding")},
            url,
            hidden=hidden,
        ),
        **ask(
            tmp_path,
            {n: entries[n] for n in ("dlrm", "tokenizer")},
            url,
            hidden={"transformers", "safetensors"},
        ),
    }
    for name, (_, library) in WITHOUT_MORE.items():
        state, reasons, ends = states[name]
        assert state == "missing", (name, state, reasons)
        assert "not installed" in reasons, name
        assert library in reasons or name == "http", name
        assert reasons.partition(": ")[2].rpartition(": ")[2] in ends, name


COMMANDS: dict[tuple[registry.Group, str], str] = {
    ("engines", "torch"): "'pytest-mlperf[lm]'",
    ("engines", "torch-module"): "'pytest-mlperf[lm]'",
    ("engines", "torch-diffusion"): "'pytest-mlperf[diffusion]'",
    ("engines", "openai"): "'pytest-mlperf[openai]'",
    ("engines", "triton"): "'pytest-mlperf[triton]'",
    ("engines", "onnxruntime"): "'pytest-mlperf[onnx]'",
    ("datasets", "imagenet"): "'pytest-mlperf[onnx]'",
    ("scorers", "map"): "'pytest-mlperf[vision]'",
    ("scorers", "rouge"): "'pytest-mlperf[scoring]'",
    ("scorers", "evaluate"): "'pytest-mlperf[evaluate]'",
    ("builders", "torchao"): "'pytest-mlperf[quantization]'",
    ("builders", "modelopt"): "nvidia-modelopt torch transformers",
}


def test_the_command_brings_all_that_is_declared() -> None:
    commands = {key: f"pip install {words}" for key, words in COMMANDS.items()}
    assert {key: install_command(*key, declared_libraries(*key)) for key in COMMANDS} == commands


def test_no_hint_adds_torch_to_engines_that_do_not_use_it() -> None:
    """A client of a server needs none to compare texts."""
    groups: list[registry.Group] = ["engines", "datasets", "scorers", "builders"]
    brought = []
    for group in groups:
        for use in registry.registered(group):
            needed = declared_libraries(group, use)
            extra = install_command(group, use, needed).partition("[")[2].partition("]")[0]
            if "torch" in extras().get(extra, ()) and "torch" not in needed:
                brought.append((group, use, extra))
    assert brought == []
