"""Run any torch.nn.Module in batches: one of the built-in models, or a factory of the suite's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from pytest_mlperf import SuiteError, UnavailableError
from pytest_mlperf.adapters.engines import require_module
from pytest_mlperf.adapters.engines.llm.model_folder import find_model
from pytest_mlperf.adapters.engines.torch._base import TorchBase, TorchModuleOptions

ENGINE = "torch-module"

BUILT_IN = {
    "dlrm-v2": "pytest_mlperf.adapters.engines.torch.module.dlrm:dlrm_v2",
    "dlrm-v3": "pytest_mlperf.adapters.engines.torch.module.hstu:dlrm_v3",
    "rgat": "pytest_mlperf.adapters.engines.torch.module.rgat:rgat",
    "question-answering": "pytest_mlperf.adapters.engines.torch.module.squad:question_answering",
}
"""Factories by a name of their own; their models are folders with config.json."""

NEEDED_MODULES = dict.fromkeys(BUILT_IN, "safetensors") | {"question-answering": "transformers"}


class TorchModuleEngine(TorchBase):
    """Answers each sample with its own part of the module's result, little-endian.

    Floats are float32, bytes and truths uint8, other whole numbers int64.

    A factory is called as `factory(model=..., **arguments)` in the worker, with weights = "dummy"
    besides where the suite says so, and returns a torch.nn.Module. That may have attributes:
    `batching`; `prepare(sample)`, which turns a data set's sample into what it takes, outside of
    the time that is measured; `bind(dataset)`, called once, for what it reads within that time;
    `encode(part)`, which makes bytes of a sample's part of the result in place of the form above;
    `host_inputs`, names of inputs that stay on the CPU; and `facts`,
    words for the fingerprint by name, such as "weights_sha256", which is else that of its state.

    Args:
        dataset: Its inputs are arrays, or dicts and lists of them, as the module takes them: dicts
            by name, lists by position.
        model: Given to the factory; a folder with config.json for "dlrm-v2", "dlrm-v3", "rgat" and
            "question-answering".
        precision: "fp32", "bf16" or "fp16": parameters, buffers and floating inputs have this type,
            without autocast. "int8" or "int4": weights of linear layers as such (torchao), the rest
            in float32, or with int4 on GPUs in bfloat16. "fp8": these weights and their inputs, the
            rest in bfloat16, on GPUs of compute capability 8.9 and later.
    """

    name = ENGINE
    optional_libraries: ClassVar[tuple[str, ...]] = ("torchao", "transformers")
    options: ClassVar[type[TorchModuleOptions]] = TorchModuleOptions

    _options: TorchModuleOptions

    def _find(self, model: str | None) -> None:
        self._place = _find_factory(self._options.factory)
        _check_arguments(self._options.arguments or {})
        self._model = _find_model(self._options.factory, model)

    def require(self) -> None:
        """Look for the device and for what the options need; import a factory of the suite's."""
        if self._options.factory in BUILT_IN:
            who = f'engine {ENGINE}: factory = "{self._options.factory}"'
            require_module(who, NEEDED_MODULES[self._options.factory], "lm")
        else:
            from pytest_mlperf.adapters.engines.torch.module._runner import find_factory

            find_factory(self._options.factory, self._place)
        super().require()

    def _open(self, undo: ExitStack) -> None:
        from pytest_mlperf.adapters.engines.torch.module._runner import ModuleRunner, open_module

        options = self._options
        loaded = open_module(self._place, options, model=self._model, precision=self._precision)
        self._samples = runner = ModuleRunner(loaded, self._dataset, options)
        self._facts |= {**loaded.facts, **runner.describe()}
        self._work = runner.run
        if options.workers:
            self._start_queue(runner.run, undo, threads=options.workers)


def _find_factory(factory: str) -> str:
    if factory in BUILT_IN:
        return BUILT_IN[factory]
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", factory):
        return factory
    raise SuiteError(
        f"engine {ENGINE}: factory = {factory!r} is neither one of {', '.join(BUILT_IN)} nor "
        '"package.module:factory"',
        option="factory",
    )


def _find_model(factory: str, model: str | None) -> str | None:
    if factory in BUILT_IN:
        return str(find_model(ENGINE, model, parts="config.json and the safetensors files"))
    if model is not None and not Path(model).exists():
        raise UnavailableError(
            f"{model}: this model does not exist; put it there, or set workload.model to its path",
            path=model,
        )
    return model


def _check_arguments(arguments: Mapping[str, object]) -> None:
    for name in ("model", "weights"):
        if name in arguments:
            setting = "workload.model" if name == "model" else "the engine's option weights"
            raise SuiteError(
                f"engine {ENGINE}: arguments has {name!r}; set {setting} instead",
                option="arguments",
            )
