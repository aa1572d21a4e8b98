from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.api import names
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model import Model
from vllm.sampling_params import RequestOutputKind


class LLM:
    def __init__(self, model: str, **given: Any) -> None:
        for name in given:
            if name not in {*names("LLM()"), *names("AsyncEngineArgs()")} - {"enable_log_requests"}:
                raise TypeError(f"EngineArgs() got an unexpected keyword argument {name!r}")
        self._model = Model(AsyncEngineArgs(model=model, **given))
        self.llm_engine = SimpleNamespace(
            vllm_config=self._model.config(),
            engine_core=SimpleNamespace(shutdown=self._model.shutdown),
        )

    def generate(self, prompts: Any, sampling_params: Any, *, use_tqdm: bool = True) -> list[Any]:
        assert sampling_params.output_kind is RequestOutputKind.FINAL_ONLY
        rows = [self._model.row(prompt, sampling_params) for prompt in prompts]
        if self._model.fault == "dies":
            raise RuntimeError("EngineCore encountered an issue. See stack trace (above)")
        for row in rows:
            while row.reason is None:
                self._model.step(row)
        return [self._model.output(row) for row in rows]
