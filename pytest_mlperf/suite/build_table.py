"""`build` of an engine entry: how its quantised checkpoint is made of the workload's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

from pytest_mlperf.suite.values import Name, shown


class CalibrationSource(BaseModel):
    """Samples that a builder looks at; keys other than `use` and `path` are the data set's."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: StrictStr = Field(description="Registered data set, or package.module:name.")
    path: StrictStr | None = Field(
        default=None, description="File or folder; relative to the suite file; ${VAR} is expanded."
    )

    @property
    def options(self) -> dict[str, Any]:
        """Every key but `use` and `path`."""
        return dict(self.model_extra or {})


Count = Annotated[StrictInt, Field(gt=0)]


def _calibration(value: object) -> object:
    """Read one of two kinds, so that a defect is told of the kind that was meant."""
    if isinstance(value, CalibrationSource) or value is None:
        return value
    if isinstance(value, dict):
        if not isinstance(value.get("use"), str):
            raise ValueError('a calibration needs use = "...", the name of a data set')
        if not isinstance(value.get("path", ""), str):
            raise ValueError("path must be a string")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{shown(value)} is no calibration: write a number of samples of the workload's own "
            'data set, or a data set: { use = "openorca", path = "...", count = 64 }'
        )
    return value


class BuildStep(BaseModel):
    """What makes a quantised checkpoint once; keys beside these are options of the builder."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: StrictStr = Field(description="Registered builder, or package.module:name.")
    recipe: Name = Field(description="How it quantises, in the builder's words; part of test ids.")
    calibration: Annotated[CalibrationSource | Count | None, BeforeValidator(_calibration)] = Field(
        default=None,
        description="What it looks at: a number of samples of the workload's data set, or a data "
        "set of its own.",
    )
    python: Annotated[StrictStr, Field(min_length=1)] | None = Field(
        default=None,
        description="Python of the environment that has the builder's libraries; relative to the "
        "suite file; ~ and ${VAR} are expanded; default: this one.",
    )

    @property
    def command(self) -> None:
        """A builder runs in a Python; a container would have to write into the folder of builds."""
        return

    @property
    def options(self) -> Mapping[str, Any]:
        """Every other key: options of the builder."""
        return dict(self.model_extra or {})

    @property
    def builder(self) -> str:
        """The builder's registered name, or that of its class."""
        return self.use.rpartition(":")[2]

    def label(self, name: str | None, engine: str, precision: str) -> str:
        """Return the name of an engine entry in test ids: no two recipes have the same one.

        Args:
            name: What the entry is called, or None.
            engine: Its engine.
            precision: Its precision, which follows the name in test ids.
        """
        own = name or f"{engine}-{self.builder}"
        return own if self.recipe == precision else f"{own}-{self.recipe}"
