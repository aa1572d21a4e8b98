"""What this stand-in is told to do wrong, as JSON in TENSORRT_LLM_STANDIN.

Keys: "fail": number of the request that fails; "cancel": number of the request that is cancelled
after two tokens; "strip_end": answers come without their end token; "clock_ahead_s": its own times
to first token are so much longer than they were; "no_metrics": it keeps no stamps;
"load": what loading fails with.
"""

from __future__ import annotations

import json
import os
from typing import Any

VARIABLE = "TENSORRT_LLM_STANDIN"


def fault(name: str) -> Any:
    """Return what it is told about this fault; None where it is not to happen."""
    return json.loads(os.environ.get(VARIABLE, "{}")).get(name)
