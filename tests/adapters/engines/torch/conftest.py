"""Model folders that all tests of the engine share; no test changes them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    """Keep the libraries' objects out of the collector, which every engine's end runs.

    Torch's threads wait for each other busily: on a busy machine one is faster than two.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that counts down to its end token, with a tokenizer."""
    from tests.adapters.engines.torch.models import chain_model, countdown, write_tokenizer

    folder = chain_model(tmp_path_factory.mktemp("counting"), countdown, vocabulary=320)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that repeats the last token of its prompt for ever."""
    from tests.adapters.engines.torch.models import chain_model

    return chain_model(tmp_path_factory.mktemp("endless"), lambda token: token)


@pytest.fixture(scope="session")
def mute(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that ends at once."""
    from tests.adapters.engines.torch.models import chain_model

    return chain_model(tmp_path_factory.mktemp("mute"), lambda _: 2)


@pytest.fixture(scope="session")
def random(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights that ends now and then."""
    from tests.adapters.engines.torch.models import random_model

    return random_model(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Stable Diffusion XL."""
    pytest.importorskip("diffusers")
    from tests.adapters.engines.torch.pipelines import write_pipeline

    return write_pipeline(tmp_path_factory.mktemp("sdxl"))
