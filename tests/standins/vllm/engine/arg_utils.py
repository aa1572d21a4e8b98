from __future__ import annotations

import dataclasses
from typing import Any

from vllm.api import names

AsyncEngineArgs: Any = dataclasses.make_dataclass(
    "AsyncEngineArgs", [(name, Any, None) for name in names("AsyncEngineArgs()")]
)
