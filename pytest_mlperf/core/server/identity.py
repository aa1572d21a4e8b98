"""Define the identity of a server: its hardware, and the source that reported it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_mlperf.core.baseline import Property, differences
from pytest_mlperf.core.notes import Note, NoteKey, Words

SOURCES = ("probe", "exporter", "kubernetes", "server", "declared", "unknown")
"""Sources of an identity in order of trust; the last two are not verified."""

SOURCE = "server"
"""Name of the property that holds the source; only identities of servers have it."""

HARDWARE = "server.hardware"
"""Key of the hardware as text, among the surroundings."""

MIN_STALE_SECONDS = 60.0
"""Twice the default interval of a DCGM exporter, after which its energy counters must differ."""

_REMARKS: Mapping[Property, NoteKey] = {
    "declared": "hardware_declared",
    "unknown": "hardware_unknown",
}


@dataclass(frozen=True, kw_only=True)
class ServerIdentity:
    """Describe the hardware of a server on another machine.

    Attributes:
        properties: Hardware properties and their source, all of which must equal a baseline's.
        surroundings: Properties outside the identity whose changes are reported.
        facts: Software of the server, for the fingerprint.
        notes: Remarks for each verdict.
        idle: Reason why the server cannot use the declared GPUs; "" if it can.
        joules: Energy counter of each GPU of an exporter [J], by UUID.
        time_s: Monotonic time at which the source answered [s].
    """

    properties: Mapping[str, Property]
    surroundings: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    idle: str = ""
    joules: Mapping[str, float] = field(default_factory=dict)
    time_s: float = 0.0

    @property
    def remarks(self) -> tuple[Words, ...]:
        """Remarks for each verdict: whether the hardware was verified, and the notes."""
        key, hardware = _REMARKS.get(self.properties[SOURCE]), self.properties.get("hardware")
        return (*([Note.of(key, hardware=hardware)] if key else []), *self.notes)

    @property
    def in_words(self) -> str:
        """Hardware and source: "8 x NVIDIA H200 (probe)"."""
        return f"{self.surroundings[HARDWARE]} ({self.properties[SOURCE]})"


def identity_reasons(
    identity_before: ServerIdentity, identity_after: ServerIdentity
) -> Iterator[Words]:
    """Yield reasons not to judge a run, e.g. that the server's hardware changed during it."""
    if changed := differences(identity_before.properties, identity_after.properties):
        parts = [Note.of("was", name=one.name, old=one.theirs, new=one.ours) for one in changed]
        yield Note.of("server_hardware_changed", changes=tuple(parts))
    elapsed_s, joules = identity_after.time_s - identity_before.time_s, identity_before.joules
    if joules and joules == identity_after.joules and elapsed_s >= MIN_STALE_SECONDS:
        yield Note.of("exporter_stale", seconds=elapsed_s)
    if identity_after.idle:
        yield identity_after.idle
