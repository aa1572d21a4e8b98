from __future__ import annotations

from typing import Any

from vllm.api import names

if "tokens_input" in names("vllm.inputs"):

    def tokens_input(prompt_token_ids: list[int]) -> dict[str, Any]:
        return {"type": "token", "prompt_token_ids": prompt_token_ids}
