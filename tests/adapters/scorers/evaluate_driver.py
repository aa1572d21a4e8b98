"""Score with EvaluateScorer in a process of its own: `python evaluate_driver.py CASES FOUND`.

evaluate reads where its caches are when it is imported, and imports every library it can find.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from pytest_mlperf.adapters.scorers.evaluate import EvaluateScorer
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.testing import check_scorer


def score(case: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of one case, or the error that it ends with."""
    np.random.seed(len(str(case)))  # numpy's own state is another one in every process
    outputs, references = [bytes(one) for one in case["outputs"]], case["references"]
    try:
        if "contract" in case:
            scores = check_scorer(EvaluateScorer, outputs, references, **case["contract"])
        else:
            scores = EvaluateScorer(**case["options"]).score(outputs, references)
    except MlperfError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"per_sample": scores.per_sample, "aggregate": scores.aggregate}


if __name__ == "__main__":
    unused = ("scipy", "sklearn", "torch", "transformers")
    sys.modules.update(dict.fromkeys(unused))  # type: ignore[arg-type]
    importlib.import_module("evaluate")
    for name in unused:
        del sys.modules[name]
    cases = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    Path(sys.argv[2]).write_text(json.dumps({name: score(case) for name, case in cases.items()}))
