from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

HEAVY = (
    "evaluate huggingface_hub nltk numpy pycocotools rapidfuzz rouge_score pylatexenc scipy sklearn"
    " sympy tokenizers torch transformers whisper_normalizer"
)


SCORERS = (
    "auc boxes3d category_f1 detection dice evaluate exact_match function_calls gsm8k images "
    "long_context mbxp mixtral ranking reasoning.scorer rouge.scorer squad top1 word_accuracy"
)


def test_importing_a_scorer_imports_none_of_the_libraries_it_works_with() -> None:
    """One process suffices: imported modules stay in sys.modules."""
    modules = [f"pytest_mlperf.adapters.scorers.{name}" for name in SCORERS.split()]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules, sep='\\n')"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()

    assert {*modules} <= {*loaded}
    assert not {*HEAVY.split()} & {*loaded}
