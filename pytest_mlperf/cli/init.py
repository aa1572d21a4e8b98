"""`pytest-mlperf init`: write a first suite and the folder for its baselines."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path

from pytest_mlperf import registry
from pytest_mlperf.cli.output import show
from pytest_mlperf.core.baseline import SERVER_FACT
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.hardware.specs import class_of
from pytest_mlperf.run.server_hardware import ServerSources
from pytest_mlperf.stores import atomic
from pytest_mlperf.suite.libraries import declared_libraries, install_command, is_here

FIRST_ENGINE = "null"
"""The engine whose first suite runs unchanged on every machine."""

MADE_UP = re.compile(r'^use = "prompts"\nsamples = ', re.MULTILINE)
"""Matches the synthetic data set of a first suite."""

URL = re.compile(r'^url = "(.+?)"', re.MULTILINE)
"""Matches the address of the server that a first suite measures."""

SCORER_LINES = """\
[workload.scorer]                                  # answers may vary: use = "rouge"
use = "exact_match"
tokenizer = "${{MLPERF_MODELS}}/my-llm"              # edit: folder with the model's tokenizer

[workload.dataset]                                 # timed and scored
use = "prompts"
path = {}
columns = {{ reference = "reference" }}

"""

HELP = """\
Writes suites/demo.mlperf.toml and baselines/README.md; never overwrites a file.
The null engine only waits, so its suite runs anywhere. In the suites of other
engines, edit the lines marked "edit". The suites of openai, vllm and
tensorrt_llm sweep the concurrency over synthetic prompts and need no data set;
openai's measures the server at --url, by default http://127.0.0.1:8000, and
asks it on which hardware it runs.
--accuracy takes your prompts instead, as JSONL with "prompt" and "reference" in
each line; answers must equal their references.

needs: a folder that you may write to; for the suite's needs run doctor

examples:
  $ pytest-mlperf init
      a suite that runs without changes: pytest suites
  $ pytest-mlperf init ~/bench --engine torch
      in another folder: a language model in Hugging Face format
  $ pytest-mlperf init --engine openai --url http://gpu-box:8000
      a running server: throughput against speed per user, in five minutes
  $ pytest-mlperf init --engine openai --accuracy prompts.jsonl
      the same with your prompts, and the accuracy of the answers
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    engines = list(registry.first_suites())
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="default: here")
    parser.add_argument(
        "--engine",
        choices=engines,
        default=FIRST_ENGINE,
        metavar="ENGINE",
        help=f"engine of the suite: {', '.join(engines)} (default: {FIRST_ENGINE})",
    )
    parser.add_argument("--url", help="address of the running server, for openai")
    parser.add_argument(
        "--accuracy",
        type=Path,
        metavar="FILE",
        help="JSONL file of prompts and references, for openai, vllm and tensorrt_llm",
    )


def run(parsed: argparse.Namespace) -> int:
    """Write the files of a first suite; refuse if one of them exists."""
    folder: Path = parsed.folder
    suites = folder / "suites"
    suite, readme = suites / "demo.mlperf.toml", folder / "baselines" / "README.md"
    require_absent((suite, readme), "Name another folder: pytest-mlperf init FOLDER")
    text, edits = registry.first_suites()[parsed.engine]
    asked = URL.search(text)
    if parsed.url and not asked:
        raise MlperfError(
            f"--url needs an engine that measures a server, not {parsed.engine}: add --engine "
            "openai"
        )
    if asked:
        text = _filled(text, parsed.url or asked[1])
    if parsed.accuracy:
        text = _scored(text, parsed.engine, parsed.accuracy, suites)
    template = files("pytest_mlperf.cli").joinpath("templates/baselines.md")
    texts = {suite: text, readme: template.read_text("utf-8")}
    write_all(texts)
    show(f"wrote {path}" for path in texts)
    absent = [one for one in declared_libraries("engines", parsed.engine) if not is_here(one)]
    if absent:
        show([f"engine {parsed.engine} needs: {install_command('engines', parsed.engine, absent)}"])
    show(_next_steps(suites, "" if parsed.engine == FIRST_ENGINE else edits))
    return 0


def _filled(text: str, url: str) -> str:
    """Write a server's address and detected accelerator into a suite's text; print both."""
    sources, text = ServerSources(url=url), text.replace(URL.findall(text)[0], url)
    if sources.is_here:
        classes = Counter(detect(gpus=True).classes)
        hardware = "this machine"
    else:
        server = sources.ask()
        if not server.facts[f"{SERVER_FACT}pages"]:
            show([f"no server answers at {url}: set accelerators in the suite to its hardware"])
            return text
        product, count = server.properties.get("gpu"), server.properties.get("gpus")
        classes = Counter({class_of(str(product)): int(count or 1)} if product else {})
        hardware = server.in_words
    names = [f"{n}x{c}" if n > 1 else c for c, n in classes.items()] or ["cpu"]
    written = f"accelerators = {json.dumps(names[:1])}"
    show([f"{url} runs on {hardware}: {written}"])
    return text.replace('accelerators = ["cpu"]', written, 1)


def _scored(text: str, engine: str, prompts: Path, suites: Path) -> str:
    if not MADE_UP.search(text):
        having = [name for name, (one, _) in registry.first_suites().items() if MADE_UP.search(one)]
        raise MlperfError(
            f"--accuracy needs an engine of {', '.join(having)}, not {engine}: add --engine NAME"
        )
    try:
        prompts_dataset = registry.resolve(registry.target("datasets", "prompts"))
        prompts_dataset(path=str(prompts), columns={"reference": "reference"})
    except MlperfError as error:
        need = 'each line must be {"prompt": "…", "reference": "…"}'
        raise MlperfError(f"{error}; {need}; nothing was written") from None
    table = SCORER_LINES.format(json.dumps(os.path.relpath(prompts, suites)))
    if "\nmodel = " in text:
        table = re.sub("tokenizer.*\n", "", table)
    head, _, tail = text.partition("[workload.dataset]")
    return head + table + re.sub("ignore_eos.*\n", "", tail[tail.index("[[engines]]") :])


def _next_steps(suites: Path, edits: str) -> list[str]:
    if edits:
        return [
            f"next: edit {suites}/demo.mlperf.toml    {edits}",
            f"      pytest-mlperf doctor {suites}     check what is missing",
            f"      pytest {suites}                   measure, without a baseline",
        ]
    return [
        f"next: pytest {suites}                            measure, without a baseline",
        f"      pytest {suites} --mlperf-update=missing    record; repeat on 3 other days",
        f"      pytest {suites} --mlperf-handicap 50%      see what a failure looks like",
    ]


def require_absent(paths: Iterable[Path], advice: str) -> None:
    """Raise MlperfError if a path exists, including a dangling link."""
    for path in paths:
        if os.path.lexists(path):
            raise MlperfError(f"{path} exists; nothing was written. {advice}")


def write_all(texts: Mapping[Path, str]) -> None:
    """Write all files or none: if one fails, delete those written before."""
    written: list[Path] = []
    for path, text in texts.items():
        try:
            atomic.write_text(path, text)
        except OSError as error:
            for other in written:
                other.unlink()
            raise MlperfError(
                f"{path} cannot be written: {error.strerror}; nothing was written"
            ) from None
        written.append(path)
