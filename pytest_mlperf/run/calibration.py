"""Write the prompts that a builder looks at: `python .../run/calibration.py SPEC.json`.

In a process of its own and always in this Python, which has the data set's libraries: the builder's
has perhaps others. A model's tokenizer makes token ids of texts, as the engines' do.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(file: str) -> None:
    """Write {"prompts": lists of token ids, "digest": hex SHA-256 of them}."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    spec = json.loads(Path(file).read_text("utf-8"))
    sys.path[:1] = [str(Path(__file__).absolute().parents[2])]
    sys.path += [entry for entry in spec["import_path"] if entry not in sys.path]
    importlib.import_module("pytest_mlperf.run.guard").guard_group()
    reporting = importlib.import_module("pytest_mlperf.run.reporter")
    reporter = reporting.Reporter(descriptor)
    with reporter.blaming("build"):
        prompts = prompts_of(spec)
        digest = importlib.import_module("pytest_mlperf.run.checkpoint_source").hash_of(prompts)
        atomic = importlib.import_module("pytest_mlperf.stores.atomic")
        atomic.write_text(Path(spec["file"]), json.dumps({"prompts": prompts}))
        reporter.event("done", digest=digest, samples=len(prompts))
    reporting.leave(0)


def prompts_of(spec: dict[str, Any]) -> list[list[int]]:
    """Return the samples' token ids, those of texts by the model's tokenizer.

    Raises:
        RunError: There are too few samples, or one is no prompt for this model.
    """
    from pytest_mlperf.core.errors import RunError
    from pytest_mlperf.engines.model_folder import load_tokenizer, read_config
    from pytest_mlperf.engines.prompts import Limits, Prompts
    from pytest_mlperf.registry import resolve
    from pytest_mlperf.run.accuracy_pass import fixed_order
    from pytest_mlperf.run.samples import as_dataset

    folder = Path(spec["source"])
    dataset = as_dataset(resolve(spec["dataset"]["target"])(**spec["dataset"]["options"]))
    total, count = len(dataset), spec["count"]
    if count is not None and count > total:
        raise RunError(
            "build", f"calibration asks for {count:,} samples, and the data set has {total:,}"
        )
    indices = sorted(fixed_order(total)[:count])
    tokenizer = None
    if isinstance(dataset.input(indices[0]), str):
        tokenizer, _ = load_tokenizer("calibration", folder)
    config = read_config(folder)
    limits = Limits(
        vocabulary=config.vocabulary or sys.maxsize,
        context=config.context,
        max_new_tokens=0,
        max_prompt_tokens=config.context,  # what is longer is cut: a builder generates nothing
    )
    prompts = Prompts(dataset=dataset, tokenizer=tokenizer, limits=limits)
    try:
        prompts.load(indices)
    except RunError as error:
        raise RunError("build", str(error)) from error
    return [prompts[index] for index in indices]


if __name__ == "__main__":
    main(sys.argv[1])
