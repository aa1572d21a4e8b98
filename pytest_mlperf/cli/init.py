"""`pytest-mlperf init`: a first suite that runs anywhere, and the folder for its baselines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.cli.output import add_parser, show
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores import atomic

NULL = """\
# A first suite: the null engine waits 2 ms per sample and computes nothing, so this runs anywhere.
# To measure a model of yours, edit the three lines marked "edit".
schema = 1
round = "v4.1"                                     # MLPerf round whose rules and seeds hold
profile = "quick"                                  # official: MLPerf's own durations and counts

[workload]
name = "demo"
dataset = { use = "synthetic", samples = 256 }     # edit, e.g. { use = "imagenet", path = "..." }

[[engines]]
use = "null"                                       # edit, e.g. "onnxruntime", with a model above
accelerators = ["cpu"]                             # edit, e.g. ["H200", "8xH100"]
options = { latency_s = 0.002 }

[[scenarios]]
name = "Offline"
min_duration = "2s"

[limits]                                           # the smallest change that matters
throughput = { max_drop = "20%" }                  # GPUs are quieter than shared CPUs: 3 % there
"""

ONNXRUNTIME = """\
# An image classifier in ONNX, by the rules of MLPerf's resnet50. Edit the lines marked "edit";
# `pytest-mlperf doctor` says what is still missing. docs/suites.md has every key.
schema = 1
round = "v4.1"                                     # MLPerf round whose rules and seeds hold
profile = "quick"                                  # official: MLPerf's own durations and counts

[workload]
name = "my-resnet50"                               # edit: a name of your own
twin_of = "resnet50"                               # scorer and latency limits as MLPerf has them
model = "${MLPERF_MODELS}/resnet50_v1.onnx"        # edit: your model
dataset = { use = "imagenet", path = "${MLPERF_DATA}/imagenet", count = 500 }   # edit: your images
# reference = { top1 = 76.4 }                      # edit: your model's own score turns the gate on

[[engines]]
use = "onnxruntime"
precision = "fp32"
accelerators = ["cpu"]                             # edit, e.g. ["H200"], with CUDAExecutionProvider
options = { providers = ["CPUExecutionProvider"], batch_size = 8 }

[[scenarios]]
name = "Offline"
min_duration = "10s"

[[scenarios]]
name = "SingleStream"
min_duration = "10s"

[limits]                                           # the smallest change that matters
throughput = { max_drop = "20%" }                  # GPUs are quieter than shared CPUs: 3 % there
latency_p90 = { max_rise = "20%" }
"""

TORCH = """\
# A causal language model from a folder in Hugging Face's files. Edit the lines marked "edit";
# `pytest-mlperf doctor` says what is still missing. docs/suites.md has every key.
schema = 1
round = "v4.1"                                     # MLPerf round whose rules and seeds hold
profile = "quick"                                  # official: MLPerf's own durations and counts

[workload]
name = "my-llm"                                    # edit: a name of your own
tokens = true                                      # count and time tokens
model = "${MLPERF_MODELS}/my-llm"                  # edit: config.json, tokenizer, safetensors
scorer = { use = "rouge" }

[workload.dataset]
use = "openorca"
path = "${MLPERF_DATA}/open_orca"                  # edit: MLPerf's table, or one of your own
template = "{question}"                            # edit: prompts as text, for any tokenizer
count = 64

[[engines]]
use = "torch"
precision = "bf16"
accelerators = ["cpu"]                             # edit, e.g. ["H200"], with device = "cuda"
options = { device = "cpu", batch_size = 8, max_new_tokens = 64 }

[[scenarios]]
name = "Offline"
min_duration = "30s"

[limits]                                           # the smallest change that matters
throughput = { max_drop = "20%" }                  # GPUs are quieter than shared CPUs: 3 % there
"""

SUITES = {"null": NULL, "onnxruntime": ONNXRUNTIME, "torch": TORCH}
"""A first suite by engine."""

DEFAULT = "null"
"""The engine whose suite runs as it stands."""

BASELINES = """\
# Baselines

Accepted measurements, written by `pytest suites --mlperf-update=missing` and reviewed like code.
"""


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "init",
        summary="write a first suite, and a folder for baselines",
        description=(
            "Writes suites/demo.mlperf.toml and baselines/README.md; what exists is never\n"
            "touched. The null engine waits and computes nothing, so its suite runs anywhere;\n"
            "the other two are forms to fill in: model, data and accelerator are marked edit."
        ),
        needs="a folder that may be written; doctor says what the suite itself needs",
        examples=[
            ("init", "a suite that runs at once: pytest suites"),
            ("init --engine torch", "a language model from a folder in Hugging Face's files"),
            ("init ~/bench --engine onnxruntime", "an ONNX image classifier, in another folder"),
        ],
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="default: here")
    parser.add_argument(
        "--engine",
        choices=list(SUITES),
        default=DEFAULT,
        help="what the suite runs (default: null)",
    )
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Write the files, none of which may exist.

    Raises:
        MlperfError: A file exists, or cannot be written.
    """
    folder: Path = parsed.folder
    suites = folder / "suites"
    files = {
        suites / "demo.mlperf.toml": SUITES[parsed.engine],
        folder / "baselines" / "README.md": BASELINES,
    }
    for path in files:
        if os.path.lexists(path):
            raise MlperfError(
                f"{path} exists; nothing was written. Another place: pytest-mlperf init FOLDER"
            )
    write_all(files)
    show(f"wrote {path}" for path in files)
    show(next_steps(suites, filled=parsed.engine == DEFAULT))
    return 0


def next_steps(suites: Path, *, filled: bool) -> list[str]:
    """Return what to do next.

    Args:
        suites: The folder with the suite.
        filled: The suite runs as it stands.
    """
    if not filled:
        return [
            f"next: edit {suites}/demo.mlperf.toml    model, data, accelerator",
            f"      pytest-mlperf doctor {suites}     what is still missing",
            f"      pytest {suites}                   measure; there is no baseline yet",
        ]
    return [
        f"next: pytest {suites}                            measure; there is no baseline yet",
        f"      pytest {suites} --mlperf-update=missing    record one, commit baselines/",
        f"      pytest {suites} --mlperf-handicap 50%      see what a failure looks like",
    ]


def write_all(files: Mapping[Path, str]) -> None:
    """Write all files, or none.

    Raises:
        MlperfError: One cannot be written; those before it are taken away again.
    """
    written: list[Path] = []
    for path, text in files.items():
        try:
            atomic.write_text(path, text)
        except OSError as error:
            for other in written:
                other.unlink()
            raise MlperfError(
                f"{path} cannot be written: {error.strerror}; nothing was written"
            ) from None
        written.append(path)
