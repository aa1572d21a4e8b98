"""Sign results with an SSH key (`--mlperf-sign`) for `pytest-mlperf merge --verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mlperf.extension import OptionGroup

API = 1


def mlperf_addoptions(group: OptionGroup) -> None:
    """Declare the option `--mlperf-sign`."""
    group.add(
        "sign",
        "KEY",
        "sign the results with an SSH key, as results.json.sig next to them (a public key if an "
        "agent has the private one); pytest-mlperf merge and update check it with --verify",
        convert=Path,
        group="ci",
        beside=True,
    )


def mlperf_session_finished(folder: Path, options: Mapping[str, Any]) -> Iterator[str]:
    """Sign results.json and the `--mlperf-json` file; yield a summary line per signature."""
    if key := options["sign"]:
        from pytest_mlperf import EnvironmentFault, MlperfError
        from pytest_mlperf.reports.terminal.layout import relative
        from pytest_mlperf.stores.signatures import sign

        for file in filter(None, (folder / "results.json", options["json"])):
            try:
                if file.exists():
                    yield f"signature: {relative(sign(file, key))}"
            except (MlperfError, OSError) as error:
                raise EnvironmentFault(f"the signature was not written: {error}") from error
