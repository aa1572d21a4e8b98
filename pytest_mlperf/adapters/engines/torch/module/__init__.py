"""Run any torch.nn.Module in batches: a built-in model, or one made by the suite's own function."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from pytest_mlperf import SuiteError, UnavailableError
from pytest_mlperf.adapters.engines import refuse_conflicts, require_module
from pytest_mlperf.adapters.engines.llm.model_folder import find_model
from pytest_mlperf.adapters.engines.torch._base import TorchBase, TorchModuleOptions

ENGINE = "torch-module"

BUILT_IN = {
    "dlrm-v2": "pytest_mlperf.adapters.engines.torch.module.dlrm:dlrm_v2",
    "dlrm-v3": "pytest_mlperf.adapters.engines.torch.module.hstu:dlrm_v3",
    "rgat": "pytest_mlperf.adapters.engines.torch.module.rgat:rgat",
    "question-answering": "pytest_mlperf.adapters.engines.torch.module.squad:question_answering",
}
"""Built-in factories by name; their models are folders with config.json."""

NEEDED_MODULES = dict.fromkeys(BUILT_IN, "safetensors") | {"question-answering": "transformers"}


class TorchModuleEngine(TorchBase):
    """Run a module on batches; answer each sample with its slice of the output, little-endian.

    Floats become float32, bytes and booleans uint8, other integers int64.

    A factory is called as `factory(model=..., **arguments)` in the worker, with weights = "dummy"
    if the suite says so, and returns a torch.nn.Module. The module may have these attributes:
    `batching`, the default of that option; `prepare(sample)`, which converts a data set's sample
    before the measurement; `bind(dataset)`, called once, for a module that reads from the data set
    during the measurement; `encode(part)`, which returns a sample's slice of the output as bytes in
    another format; `host_inputs`, names of inputs that stay on the CPU; and `facts`, a dict of
    texts for the fingerprint. Without "weights_sha256" in `facts`, the digest of the module's state
    is used.

    Args:
        dataset: Its inputs are arrays, or dicts (by name) or lists (by position) of arrays, as the
            module takes them.
        model: Passed to the factory; a folder with config.json for "dlrm-v2", "dlrm-v3", "rgat" and
            "question-answering".
        precision: "fp32", "bf16" or "fp16" for parameters, buffers and floating-point inputs,
            without autocast. "int8" or "int4" for the weights of linear layers (torchao); the rest
            is float32, or bfloat16 with int4 on GPUs. "fp8" for the weights and inputs of linear
            layers; the rest is bfloat16. It needs a GPU of compute capability 8.9 or later.
    """

    name = ENGINE
    optional_libraries: ClassVar[tuple[str, ...]] = ("torchao", "transformers")
    options: ClassVar[type[TorchModuleOptions]] = TorchModuleOptions

    _options: TorchModuleOptions

    def _find(self, model: str | None) -> None:
        self._path = _find_factory(self._options.factory)
        arguments = self._options.arguments or {}
        settings = {"model": "workload.model", "weights": "the engine's option weights"}
        conflicts = (
            (name in arguments, f"arguments has {name!r}; set {setting} instead", "arguments")
            for name, setting in settings.items()
        )
        refuse_conflicts(ENGINE, conflicts)
        self._model = _find_model(self._options.factory, model)

    def require(self) -> None:
        if self._options.factory in BUILT_IN:
            who = f'engine {ENGINE}: factory = "{self._options.factory}"'
            require_module(who, NEEDED_MODULES[self._options.factory], "lm")
        else:
            from pytest_mlperf.adapters.engines.torch.module._runner import find_factory

            find_factory(self._options.factory, self._path)
        super().require()

    def _load(self, undo: ExitStack) -> None:
        from pytest_mlperf.adapters.engines.torch.module._runner import ModuleRunner, open_module

        options = self._options
        precision = self._precision
        module, facts = open_module(self._path, options, model=self._model, precision=precision)
        self._samples = runner = ModuleRunner(module, self._dataset, options, precision)
        self._facts |= {**facts, **runner.describe()}
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
