"""What a suite may say to the torch engine; all else is refused before anything is loaded."""

from __future__ import annotations

import re

from pytest_mlperf.core.errors import SuiteError

PRECISIONS = ("fp32", "bf16", "fp16", "int8", "int4", "fp8")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
BATCHINGS = ("auto", "static", "dynamic", "continuous")
WEIGHTS = ("checkpoint", "dummy")
SPARSITIES = ("2:4",)
SPARSE_PRECISIONS = ("fp32", "bf16", "fp16")
"""Precisions of plain weights, of which it can be seen how many are zero."""


def check_words(precision: str, device: str, batching: str, weights: str, attention: str) -> None:
    """Refuse words that mean nothing here."""
    for name, value, words in (
        ("precision", precision, PRECISIONS),
        ("batching", batching, BATCHINGS),
        ("weights", weights, WEIGHTS),
        ("attention", attention, ATTENTIONS),
    ):
        if value not in words:
            raise SuiteError(f"engine torch: {name} = {value!r} is not one of {', '.join(words)}")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise SuiteError(f"engine torch: device = {device!r} is not cpu, cuda or cuda:N")


def check_numbers(batch_size: int, num_beams: int, threads: int | None) -> None:
    """Refuse numbers out of range."""
    rules = (
        ("batch_size", batch_size, batch_size >= 1, "a number of samples, at least 1"),
        ("num_beams", num_beams, num_beams >= 1, "a number of beams, at least 1"),
        ("threads", threads, threads is None or threads >= 1, "a number of threads, at least 1"),
    )
    for name, value, valid, expected in rules:
        if not valid:
            raise SuiteError(f"engine torch: {name} = {value!r} is not {expected}")


def check_sparsity(sparsity: str | None, precision: str, weights: str) -> None:
    """Refuse a sparsity that means nothing here, or that these weights cannot have."""
    if sparsity is None:
        return
    if sparsity not in SPARSITIES:
        raise SuiteError(
            f"engine torch: sparsity = {sparsity!r} is not one of {', '.join(SPARSITIES)}"
        )
    if precision not in SPARSE_PRECISIONS:
        raise SuiteError(
            f'engine torch: sparsity = "{sparsity}" needs precision = '
            f'{" or ".join(SPARSE_PRECISIONS)}, not "{precision}": quantised weights run in dense '
            "kernels"
        )
    if weights == "dummy":
        raise SuiteError(
            f'engine torch: sparsity = "{sparsity}" with weights = "dummy": random weights are not '
            "sparse"
        )


def check_continuous(
    batching: str,
    batch_size: int,
    num_beams: int,
    attention: str,
    kv_blocks: int | None,
    max_batch_tokens: int | None,
) -> None:
    """Refuse what transformers' continuous batching cannot do."""
    if kv_blocks is not None and kv_blocks < 1:
        raise SuiteError(f"engine torch: kv_blocks = {kv_blocks!r} is not at least 1")
    if max_batch_tokens is not None and max_batch_tokens < batch_size:
        raise SuiteError(
            f"engine torch: max_batch_tokens = {max_batch_tokens!r} is less than batch_size = "
            f"{batch_size}; a sample needs one token per forward pass"
        )
    if batching == "continuous" and num_beams > 1:
        raise SuiteError(
            f'engine torch: batching = "continuous" knows no beams, but num_beams = {num_beams}; '
            'set batching = "static" or "dynamic"'
        )
    if batching == "auto" and num_beams == 1 and attention == "eager":
        raise SuiteError(
            'engine torch: attention = "eager" runs differently in static and in continuous '
            'batches, so batching = "auto" cannot use both; say which one'
        )
