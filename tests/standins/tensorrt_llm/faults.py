"""Faults of this stand-in, as JSON in TENSORRT_LLM_STANDIN.

Keys: "fail": number of the request that fails; "cancel": number of the request that is cancelled
after two tokens; "strip_end": answers come without their end token; "clock_ahead_s": its own times
to first token are that much too long; "no_metrics": it keeps no stamps;
"load": what loading fails with; "min_of_answer": min_tokens are counted of the answer alone, as
newer ones than 1.2 do; "min_ignored": of nothing; "longest": tokens of prompt and answer that
fit, whatever the arguments say; "told_error": the request that fails tells it in
its attribute, as newer ones do; "gpus": number of GPUs instead of one.
"""

from __future__ import annotations

import json
import os
from typing import Any

VARIABLE = "TENSORRT_LLM_STANDIN"


def fault(name: str) -> Any:
    """Return the value of a fault; None if it is not set."""
    return json.loads(os.environ.get(VARIABLE, "{}")).get(name)
