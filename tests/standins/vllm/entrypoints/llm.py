from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.api import names
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model import Model
from vllm.sampling_params import RequestOutputKind


class LLM:
    def __init__(self, model: str, **fields: Any) -> None:
        for name in fields:
            if name not in {*names("LLM()"), *names("AsyncEngineArgs()")} - {"enable_log_requests"}:
                raise TypeError(f"EngineArgs() got an unexpected keyword argument {name!r}")
        self._model = Model(AsyncEngineArgs(model=model, **fields))
        self.llm_engine = SimpleNamespace(
            vllm_config=self._model.config(),
            engine_core=SimpleNamespace(shutdown=self._model.shutdown),
        )

    def generate(self, prompts: Any, sampling_params: Any, *, use_tqdm: bool = True) -> list[Any]:
        paired = sampling_params
        if not isinstance(paired, list):
            paired = [sampling_params] * len(prompts)
        assert all(each.output_kind is RequestOutputKind.FINAL_ONLY for each in paired)
        rendered = map(self._model.renderer.render, prompts)
        rows = [self._model.row(*each) for each in zip(rendered, paired, strict=True)]
        if self._model.fault == "dies":
            raise RuntimeError("EngineCore encountered an issue. See stack trace (above)")
        for row in rows:
            while row.reason is None:
                self._model.step(row)
        return [self._model.output(row) for row in rows]
