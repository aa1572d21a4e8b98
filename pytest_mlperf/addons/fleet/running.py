"""Run the cases of a session on a cluster, and pass their reports on to this pytest.

For pytest it is one session: `-x`, Ctrl-C, JUnit and `--lf` work as without a cluster. Tests on a
lost node are reported as ERROR, and every wait has a time limit.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.fleet.link import ClusterLink, Event, HeadLostError, RefusedError
from pytest_mlperf.addons.fleet.orders import CaseGroup, describe_case, groups_of
from pytest_mlperf.addons.fleet.placement import (
    FleetNode,
    fitting,
    lacking,
    need_of,
    offered,
    place,
    with_names,
)
from pytest_mlperf.addons.fleet.shipping import pack, unpack_results
from pytest_mlperf.extension import plural
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.plugin.addons import EXIT_ENVIRONMENT
from pytest_mlperf.plugin.remote import RemoteReports
from pytest_mlperf.plugin.session import MlperfSession
from pytest_mlperf.stores.atomic import unforeseen

POLL_SECONDS = 1.0

DEADLINE_S = 120.0
"""Maximum time from the order of a case to the start of its pytest, on free resources."""


LAYER = "infrastructure"

NODE = "mlperf_node"
"""JUnit property with the node that ran a test."""


def require_ray(address: str) -> None:
    """Raise UsageError if Python is too old for `--mlperf-on`, or Ray is not installed."""
    if not hasattr(tarfile, "data_filter"):
        raise pytest.UsageError("--mlperf-on needs Python 3.11.4 or newer, also on the nodes")
    if find_spec("ray") is None:
        raise pytest.UsageError(
            f"--mlperf-on {address}: Ray is not installed here: pip install 'pytest-mlperf[ray]', "
            "and use the same Ray version as the cluster"
        )


def run(session: pytest.Session, state: MlperfSession) -> bool:
    """Run tests that need no node in this process, then the others on the cluster; return True."""
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{plural(session.testsfailed, 'error')} during collection")
    pretended = state.options.pretend
    reports = RemoteReports(state)
    kept = [item for item in session.items if reports.is_decided(item)]
    groups, others = groups_of([i for i in session.items if i not in kept], pretended)
    if groups:
        address = state.options.by_name["on"]
        try:
            archive, digest = pack(state.config.rootpath)
        except MlperfError as error:
            raise pytest.UsageError(f"--mlperf-on: {error}") from None
        with closing(ClusterLink(address, archive)) as link:
            fleet = Fleet(session, state, reports, link, groups, digest)
            fleet.connect()
            _run_here(session, [*kept, *others])
            fleet.run()
    else:
        _run_here(session, [*kept, *others])
    return True


def _run_here(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    for item, following in zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        stop_if_requested(session)


def stop_if_requested(session: pytest.Session) -> None:
    """End the session if `-x`, `--maxfail` or a plugin requests it, as pytest does."""
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


class Fleet:
    """Start the cases of a session on nodes of a cluster, and handle their events."""

    def __init__(
        self,
        session: pytest.Session,
        state: MlperfSession,
        reports: RemoteReports,
        link: ClusterLink,
        groups: Sequence[CaseGroup],
        digest: str,
    ) -> None:
        self._session, self._state, self._link = session, state, link
        self._digest = digest
        self._address = state.options.by_name["on"]
        self._waiting = list(groups)
        self._running: dict[str, CaseGroup] = {}
        self._nodes: list[FleetNode] = []
        self._names: dict[str, str] = {}
        self._reports = reports
        self._notices: set[str] = set()
        self._unable: dict[str, str] = {}
        self._stale = False

    def connect(self) -> None:
        """Connect to the cluster and wait for its list of nodes.

        Ends pytest if no node has the accelerator that the session requires.
        """
        address, required = self._address, self._state.options.accelerator
        try:
            while not self._nodes:
                self._see(self._link.event(POLL_SECONDS))
        except RefusedError as error:
            raise pytest.UsageError(f"--mlperf-on {address}: no connection: {error}") from None
        need = need_of([split(required)]) if required else None
        if need and required != self._state.options.pretend and not fitting(need, self._nodes):
            pytest.exit(
                f"mlperf: accelerator {required} is required, but no node of the cluster has it; "
                f"the nodes have: {offered(self._nodes)}",
                returncode=EXIT_ENVIRONMENT,
            )

    def run(self) -> None:
        """Run every case on a node; report the tests of cases that could not run as ERROR."""
        try:
            while self._waiting or self._running:
                self._assign()
                if self._waiting or self._running:
                    self._take(self._next())
        except HeadLostError as error:
            cause = f"connection to the cluster at {self._address} lost: {error}"
            for group in list(self._running.values()):
                self._over(group, f"{cause}; this case ran on node {self._names[group.node]}")
            while self._waiting:
                self._lose(self._waiting.pop(0), f"{cause}; this case was not started")
        finally:
            for notice in sorted(self._notices):
                self._state.notice(notice)

    def _assign(self) -> None:
        if self._stale:
            return
        shared = self._state.options.neighbours == "yes"
        nodes = [node for node in self._nodes if node.key not in self._unable]
        for group in list(self._waiting):
            if not fitting(group.need, nodes):
                self._waiting.remove(group)
                able = [self._unable[node.key] for node in fitting(group.need, self._nodes)]
                self._lose(group, "; ".join(able) or lacking(group.need, nodes))
                continue
            used = [(one.node, one.need) for one in self._running.values()]
            node = place(group.need, nodes, used, shared=shared)
            if node is not None:
                self._waiting.remove(group)
                self._start(group, node)

    def _start(self, group: CaseGroup, node: FleetNode) -> None:
        group.node, group.since = node.key, time.monotonic()
        self._running[group.name] = group
        state = self._state
        pretended = group.need.anywhere and node.gpus < group.need.count
        gpus = 0 if pretended else group.need.count
        order = describe_case(
            group,
            state.config,
            state.options,
            digest=self._digest,
            worker=self._reports.worker_input,
        )
        self._link.tell(
            command="start",
            group=group.name,
            node=node.key,
            gpus=gpus,
            # A case without GPUs reserves all processors, and thus the whole node.
            cpus=0 if gpus else node.cpus,
            order=order,
        )

    def _next(self) -> Event:
        """Return the next case event, or {"event": "looked"} if nodes changed or a case is late."""
        with self._state.live as live:
            while True:
                event = self._link.event(POLL_SECONDS)
                if event and event["event"] != "nodes":
                    return event
                if self._see(event) or self._overdue():
                    return {"event": "looked"}
                on = [f"{one.title} on {self._names[one.node]}" for one in self._running.values()]
                waiting = len(self._waiting)
                live.show("; ".join(on) + f", {plural(waiting, 'case')} waiting" * bool(waiting))

    def _see(self, event: Event | None) -> bool:
        if event is None or event["event"] != "nodes":
            return False
        old_keys, stale = {node.key for node in self._nodes}, self._stale
        nodes = [FleetNode(**{**n, "kinds": frozenset(n["kinds"])}) for n in event["nodes"]]
        self._nodes, self._stale = with_names(nodes), False
        self._names |= {node.key: node.name for node in self._nodes}
        return stale or old_keys != {node.key for node in self._nodes}

    def _overdue(self) -> bool:
        """Cancel a case that did not start within its time limit; return whether there was one."""
        limit = self._state.options.conditions.lease_timeout + DEADLINE_S
        for group in list(self._running.values()):
            if not group.begun and time.monotonic() - group.since > limit:
                self._link.tell(command="kill", group=group.name)
                node = self._names[group.node]
                self._over(group, f"node {node} did not start this case within {limit:.0f} s")
                return True
        return False

    def _take(self, event: Event) -> None:
        group = self._running.get(event.get("group", ""))
        if group is None:
            return
        if event["event"] == "lost":
            self._lose_node(group, event["cause"])
        else:
            self._hear(group, event)
            stop_if_requested(self._session)

    def _hear(self, group: CaseGroup, message: Event) -> None:
        node = self._names[group.node]
        match message["topic"]:
            case "begun":
                group.begun, group.project = True, message["project"]
                self._notices |= {f"node {node}: {notice}" for notice in message["notices"]}
            case "report":
                if test := self._reports.add(self._local(group, node, message["report"])):
                    group.reported.add(test)
            case "uncollected" | "refused":
                group.causes.append(message["cause"])
            case "finished":
                self._add_notices(group, node, message["notices"])
            case "over":
                if files := message.get("files"):
                    self._unpack_files(files)
                left = [f"{path} on node {node} is too large to send" for path in message["left"]]
                self._notices |= set(left)
                ended = f"node {node}: its pytest {message['ended']}"
                self._over(group, ": ".join([ended, *(group.causes or message["tail"][-1:])]))

    def _lose_node(self, group: CaseGroup, cause: str) -> None:
        node = self._names[group.node]
        # The next list of nodes shows whether others can still run there.
        self._stale = True
        if group.begun:
            self._over(group, f"node {node} was lost while this case ran: {cause}")
            return
        self._unable[group.node] = f"node {node} could not start a case: {cause}"
        del self._running[group.name]
        self._waiting.insert(0, group)

    def _over(self, group: CaseGroup, cause: str) -> None:
        """Remove a case that has ended; report its unreported tests as ERROR with this cause."""
        del self._running[group.name]
        self._lose(group, cause)

    def _lose(self, group: CaseGroup, cause: str) -> None:
        for item in group.missing:
            group.reported.add(item.nodeid)
            self._reports.lost(item, LAYER, cause)
            stop_if_requested(self._session)

    def _local(self, group: CaseGroup, node: str, plain: Mapping[str, Any]) -> dict[str, Any]:
        root = str(self._state.config.rootpath)
        return self._reports.local(
            plain, lambda text: text.replace(group.project, root), (NODE, node)
        )

    def _add_notices(self, group: CaseGroup, node: str, notices: Mapping[str, Any] | None) -> None:
        """Add a node's warnings, errors and deferred test reports; None has nothing to add."""
        if notices is None:
            return
        not_here, _ = notices["selection"]
        self._state.addons.add_messages(*notices["faults"])
        for text in notices["deferred"]:
            reports = [self._local(group, node, report) for report in json.loads(text)["reports"]]
            group.reported.add(self._reports.hold(reports))
        if not_here:
            names = ", ".join(not_here)
            cause = f"the node's Ray label says {names}, but pytest-mlperf does not find it there"
            group.causes.append(cause)

    def _unpack_files(self, files: str) -> None:
        """Unpack the archive of a case's result files; an error only becomes a notice."""
        options, config = self._state.options, self._state.config
        try:
            unpack_results(Path(files), runs_dir=options.runs_dir, root=config.rootpath)
        except Exception as error:
            self._state.notice(unforeseen("the files of a node could not be unpacked", error))
