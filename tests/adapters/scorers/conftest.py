"""The folder of a model that scorers of text take their tokenizer from."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer, which no test changes."""
    from tests.adapters.scorers.tokenizers_made_here import NAMES, byte_level, write

    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}
    return write(tmp_path_factory.mktemp("model"), byte_level(), settings)
