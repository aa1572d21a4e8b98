"""List every `--mlperf` option of pytest, as the plugin registers it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from mlperf_reference.markdown import definitions, named, slug, text
from pytest_mlperf.core.addons import OptionGroup
from pytest_mlperf.plugin.addons import AddOns
from pytest_mlperf.plugin.options import OPTION_NAMES, add_options


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option with its ini setting.

    Attributes:
        name: "--mlperf-profile"; of an ini setting without an option its name.
        ini: "mlperf_profile".
        metavar: Form of its value; "" for a flag.
        text: Its help.
    """

    name: str
    ini: str
    metavar: str
    text: str

    @property
    def anchor(self) -> str:
        """Its id on the page."""
        return slug("option", self.name.removeprefix("--mlperf-"))


@dataclass
class _Recorder:
    """Replace pytest's parser, and record the registered options."""

    found: list[Option] = field(default_factory=list)
    inis: list[str] = field(default_factory=list)

    def getgroup(self, name: str, description: str = "") -> _Recorder:
        """Return the group: options of all groups are kept together."""
        del name, description
        return self

    def addoption(self, name: str, *_spellings: str, **given: Any) -> None:
        """Keep an option by its first name."""
        self.found.append(
            Option(
                name=name,
                ini=name.removeprefix("--").replace("-", "_"),
                metavar=str(given.get("metavar", "")),
                text=str(given.get("help", "")).replace("%%", "%"),
            )
        )

    def addini(self, name: str, help: str, **_: object) -> None:  # noqa: A002
        """Record an ini setting, and one without an option as an option."""
        self.inis.append(name)
        if not self.found or self.found[-1].ini != name:
            self.found.append(Option(name=name, ini=name, metavar="", text=help))


def options() -> list[Option]:
    """Return every option in the order of `pytest --help`.

    Raises:
        ValueError: An option has no ini setting of its name, or the other way round.
    """
    recorder = _Recorder()
    addons = AddOns()
    addons.load(lambda _: False)
    addons.declare(lambda: OptionGroup(OPTION_NAMES))
    add_options(cast("Any", recorder), addons.options)
    if [option.ini for option in recorder.found] != recorder.inis:
        raise ValueError(f"options {recorder.found} and ini settings {recorder.inis} differ")
    return recorder.found


def markdown() -> str:
    """Return a list of all options."""
    return definitions((_term(option), text(_sentence(option.text))) for option in options())


def _term(option: Option) -> str:
    value = f"={option.metavar}" if option.metavar else ""
    if option.name == option.ini:
        return f"ini {named(option.name, option.anchor)}"
    return f"{named(option.name + value, option.anchor)} · ini `{option.ini}`"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"
