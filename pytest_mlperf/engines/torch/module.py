"""Run any torch.nn.Module in batches: one of the built-in models, or a factory of the suite's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.model_folder import find_model
from pytest_mlperf.engines.queueing import WorkQueue
from pytest_mlperf.engines.torch.module_options import (
    COMPILE_MODES,
    check,
    check_arguments,
    common_rules,
    compile_rule,
    whole,
)
from pytest_mlperf.engines.torch.requirements import require_device, require_module

if TYPE_CHECKING:
    from pytest_mlperf.engines.torch.module_runner import Runner

ENGINE = "torch-module"

BUILT_IN = {
    "dlrm-v2": "pytest_mlperf.engines.torch.dlrm:dlrm_v2",
    "question-answering": "pytest_mlperf.engines.torch.module_squad:question_answering",
}
"""Factories by a name of their own; their models are folders with config.json."""

NEEDED = {"dlrm-v2": "safetensors", "question-answering": "transformers"}
"""What each of them imports besides torch."""

BATCHINGS = ("stack", "concat", "pad")


class TorchModuleEngine(Engine):
    """Answers each sample with its own part of the module's result, little-endian.

    Floats are float32, bytes and truths uint8, other whole numbers int64.

    A factory is called as `factory(model=..., **arguments)` in the worker, with weights = "dummy"
    besides where the suite says so, and returns a torch.nn.Module. That may have attributes:
    `batching`; `prepare(sample)`, which turns a data set's sample into what it takes, outside of
    the time that is measured; `host_inputs`, names of inputs that stay on the CPU; and `facts`,
    words for the fingerprint by name, such as "weights_sha256", which is else that of its state.
    """

    libraries: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        factory: str,
        arguments: Mapping[str, object] | None = None,
        device: str = "cpu",
        batch_size: int = 8,
        batching: str | None = None,
        threads: int | None = None,
        workers: int = 0,
        compile: bool | str = False,  # noqa: A002 - what torch calls it
        weights: str = "checkpoint",
        output: str | int | None = None,
    ) -> None:
        """Keep the options and check that the model is there.

        Args:
            dataset: Its inputs are arrays, or dicts and lists of them, as the module takes them:
                dicts by name, lists by position.
            model: Given to the factory; a folder with config.json for "dlrm-v2" and
                "question-answering".
            precision: "fp32", "bf16" or "fp16": parameters, buffers and floating inputs have this
                type, without autocast. "int8" or "int4": weights of linear layers as such
                (torchao), the rest in float32, or with int4 on GPUs in bfloat16. "fp8": these
                weights and their inputs, the rest in bfloat16, on GPUs of compute capability 8.9
                and later.
            factory: "dlrm-v2", "question-answering" or "package.module:factory".
            arguments: What else the factory takes.
            device: "cpu", "cuda" or "cuda:N".
            batch_size: Samples per call of the module at most.
            batching: "stack": samples of one shape, with the batch as a new first dimension.
                "concat": joined along their first dimension, in which they may differ. "pad":
                stacked, the shorter ones filled with zeros along their first dimension. None
                asks the module, and stacks where it does not say.
            threads: Threads of the CPU's operators; None leaves torch's own choice.
            workers: Long-lived threads that run batches of what has queued up, for Server; 0
                works inside `submit`.
            compile: False, or a mode of torch.compile; compiled before time is measured.
            weights: "checkpoint", or "dummy" for random weights, where the factory knows it.
            output: Key or position of the tensor to answer with; None takes the only one.

        Raises:
            SuiteError: An option is wrong.
            UnavailableError: The model is not here.
        """
        check(
            ENGINE,
            (
                *common_rules(
                    precision=precision,
                    device=device,
                    weights=weights,
                    batch_size=batch_size,
                    threads=threads,
                ),
                *compile_rule(compile, COMPILE_MODES),
                ("workers", workers, whole(workers, 0), "a number of threads; 0: inside submit"),
                (
                    "batching",
                    batching,
                    batching is None or batching in BATCHINGS,
                    f"one of {', '.join(BATCHINGS)}",
                ),
                (
                    "output",
                    output,
                    output is None or isinstance(output, str) or whole(output, 0),
                    "a name, or a position counted from 0",
                ),
            ),
        )
        self._place = _find_factory(factory)
        self._arguments = check_arguments(ENGINE, arguments)
        self._model = _find_model(factory, model)
        self._factory = factory
        self._dataset = dataset
        self._precision = precision
        self._device = device
        self._batch_size = batch_size
        self._batching = batching
        self._threads = threads
        self._workers = workers
        self._compile = None if compile is False else str(compile)
        self._dummy = weights == "dummy"
        self._output = output

    def require(self) -> None:
        """Look for the device and for what the options need; no code of the suite's is imported.

        Raises:
            EnvironmentFault: A library or the device is not here, or it has no kernels.
        """
        if self._factory in BUILT_IN:
            library = NEEDED[self._factory]
            require_module(ENGINE, library, f'factory = "{self._factory}"', "lm")
        require_device(ENGINE, device=self._device, precision=self._precision)

    def __enter__(self) -> Self:
        """Load the module and start the threads.

        Raises:
            SuiteError: The factory is not there.
            EnvironmentFault: A library or the device is not here.
            RunError: The factory breaks, or the model is not what it takes.
        """
        try:
            import torch  # noqa: F401 - used by the modules below
        except ImportError as error:
            raise EnvironmentFault(
                f"engine {ENGINE} needs {error.name}, which is not installed; "
                "try: pip install 'pytest-mlperf[lm]'"
            ) from error
        self.require()
        from pytest_mlperf.engines.torch import devices

        with contextlib.ExitStack() as undo:
            self._facts = {
                "engine": ENGINE,
                "batch_size": str(self._batch_size),
                "threads": devices.use_threads(self._threads, undo),
                "workers": str(self._workers),
                "compile": self._compile or "false",
                "output": "only" if self._output is None else str(self._output),
            }
            undo.callback(devices.release_memory)
            self._runner = self._open()
            undo.callback(self._forget)
            self._work = self._runner.run
            if self._workers:
                queue = WorkQueue(
                    self._runner.run, threads=self._workers, max_batch=self._batch_size
                )
                undo.callback(queue.close)
                self._work = queue.put
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the threads and free the module and the samples."""
        self._undo.close()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Decode and check samples; the first one is answered, so that errors show here.

        Raises:
            RunError: A sample is not what the module takes.
        """
        self._runner.load(indices)

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        self._runner.unload(indices)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Run the module here, or hand the samples to the threads."""
        self._work(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return versions, weights, and what decides speed; needs a loaded module."""
        return dict(self._facts)

    def _open(self) -> Runner:
        from pytest_mlperf.engines.torch import devices, module_batches, module_factories
        from pytest_mlperf.engines.torch.module_runner import Runner

        device = devices.find_device(self._device, engine=ENGINE)
        loaded = module_factories.open_module(
            self._factory,
            self._place,
            model=self._model,
            arguments=self._arguments,
            dummy=self._dummy,
            precision=self._precision,
            device=device,
            compile_mode=self._compile,
        )
        name = self._batching or loaded.batching or "stack"
        if name not in module_batches.BATCHINGS:
            raise RunError(
                "engine",
                f"factory {self._factory}: the module's batching is {name!r}, which is not one of "
                f"{', '.join(BATCHINGS)}",
            )
        self._facts |= {**loaded.facts, "batching": name}
        return Runner(
            loaded.module,
            self._dataset,
            batching=module_batches.BATCHINGS[name],
            device=device,
            dtype=loaded.dtype,
            batch_size=self._batch_size,
            output=self._output,
            warm_up=self._compile is not None,
        )

    def _forget(self) -> None:
        """Let go of all that refers to the module."""
        del self._runner, self._work


def _find_factory(factory: object) -> str:
    """Return "package.module:factory"."""
    if isinstance(factory, str) and factory in BUILT_IN:
        return BUILT_IN[factory]
    if isinstance(factory, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", factory):
        return factory
    raise SuiteError(
        f"engine {ENGINE}: factory = {factory!r} is neither one of {', '.join(BUILT_IN)} nor "
        '"package.module:factory"'
    )


def _find_model(factory: str, model: str | None) -> str | None:
    if factory in BUILT_IN:
        return str(find_model(ENGINE, model, parts="config.json and the safetensors files"))
    if model is not None and not Path(model).exists():
        raise UnavailableError(
            f"{model}: this model does not exist; put it there, or set workload.model to its path"
        )
    return model
