"""Load the tokenizer of a model for a data set that needs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_mlperf import RunError, UnavailableError
from pytest_mlperf.adapters.conventions import lfs_pointer, not_installed
from pytest_mlperf.extension import text_of


def require_tokenizer(folder: str) -> None:
    """Raise an error if the folder of a tokenizer does not exist."""
    if not Path(folder).is_dir():
        raise UnavailableError(
            f"{folder}: this folder does not exist; set the data set's option tokenizer to the "
            "model's folder",
            option="tokenizer",
        )


def load_tokenizer(dataset: str, folder: str) -> Any:
    """Return the tokenizer in a folder by transformers; nothing is downloaded or run from it."""
    try:
        import transformers
    except ImportError as error:
        who = f"data set {dataset}: tokenizer"
        raise not_installed(who, "transformers", "lm", option="tokenizer") from error
    require_tokenizer(folder)
    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # What a broken file raises depends on the library that reads it.
    except Exception as error:
        reason = f"{folder}: transformers cannot read the tokenizer: {text_of(error)}"
        raise RunError("dataset", lfs_pointer(Path(folder)) or reason) from error
