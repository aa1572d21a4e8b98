"""Connect a session to a Ray cluster: `python -m pytest_mlperf.addons.fleet.bridge`.

This is a separate process, as a Ray driver hangs or exits when the head node of its cluster is
lost. The process reads commands from stdin and writes events to stdout, one JSON object per line;
Ray's output goes to stderr. When stdin ends, it ends all processes that it started.
"""

from __future__ import annotations

import json
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_mlperf.addons.fleet.node import NodeCase

NODES_POLL_SECONDS = 1.0
"""Interval of node lists, each of which shows the session that the head is alive."""

POLL_SECONDS = 0.2

RAY_EXIT_SECONDS = 3.0
CONNECT_TIMEOUT_SECONDS = 10.0
LABELS = ("mlperf.io/gpu", "ray.io/accelerator-type")
"""Node labels that name the GPUs: set by the user in the suite's terms, and by Ray."""

RESOURCE = "accelerator_type:"
"""Prefix of Ray's resource that names the GPUs."""


class RayBridge:
    """Run the cases of one session on a Ray cluster."""

    def __init__(self, address: str, archive: Path) -> None:
        """Connect to the cluster, by an address for `ray.init`; upload the project's archive."""
        import ray

        if port := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address):
            # Ray waits over a minute for a dead address; a socket fails at once.
            socket.create_connection((port[1], int(port[2])), CONNECT_TIMEOUT_SECONDS).close()
        self._ray = ray
        ray.init(
            address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False
        )
        self._client = address.startswith("ray://")
        self._archive = ray.put(archive.read_bytes())
        self._spool = archive.parent
        self._actors: dict[str, Any] = {}
        self._pending: dict[Any, str] = {}
        self._looked = 0.0

    def nodes(self) -> list[dict[str, Any]]:
        """Return the live nodes of the cluster, as dicts that can be written as JSON."""
        return [_plain(node) for node in self._ray.nodes() if node["Alive"]]

    def start(self, command: dict[str, Any]) -> None:
        """Create an actor that starts a case on the command's node when resources are free."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(command["node"], soft=False)
        actor = (
            self._ray.remote(NodeCase)
            .options(
                num_cpus=command["cpus"],
                num_gpus=command["gpus"],
                max_restarts=0,
                max_task_retries=0,  # a retry would measure twice
                scheduling_strategy=where,
            )
            .remote()
        )
        self._actors[command["group"]] = actor
        self._pending[actor.begin.remote(command["order"], self._archive)] = command["group"]

    def kill(self, group: str) -> None:
        """Kill the actor of a case, which ends the case's processes."""
        self._pending = {ref: name for ref, name in self._pending.items() if name != group}
        if actor := self._actors.pop(group, None):
            self._ray.kill(actor)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the previous call; wait up to POLL_SECONDS for one."""
        if time.monotonic() - self._looked > NODES_POLL_SECONDS:
            self._looked = time.monotonic()
            yield {"event": "nodes", "nodes": self.nodes()}
        if not self._pending:
            time.sleep(POLL_SECONDS)
            return
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=POLL_SECONDS)
        for reference in ready:
            group = self._pending.pop(reference)
            try:
                messages = self._ray.get(reference)
            except Exception as error:  # Ray raises many types for a lost actor
                self._actors.pop(group, None)
                yield {"event": "lost", "group": group, "cause": _cause(error)}
                continue
            over = False
            for item in messages:
                over = over or item["topic"] == "over"
                if files := item.pop("files", None):
                    path = self._spool / f"{group}.tar"
                    path.write_bytes(files)
                    item["files"] = str(path)
                yield {"event": "message", "group": group, **item}
            if over:
                self.kill(group)
            else:
                self._pending[self._actors[group].heard.remote()] = group

    def close(self) -> None:
        """End all running cases."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        if pending := list(self._pending):  # a driver that exits may drop unsent kills
            self._ray.wait(pending, num_returns=len(pending), timeout=RAY_EXIT_SECONDS)
        self._ray.shutdown()


def _plain(node: dict[str, Any]) -> dict[str, Any]:
    resources, labels = node["Resources"], node.get("Labels") or {}
    kinds = {labels[name] for name in LABELS if name in labels}
    kinds |= {one.removeprefix(RESOURCE) for one in resources if one.startswith(RESOURCE)}
    # Ray calls an A100 of 80 GB "A100-80G" as well as "A100".
    kinds |= {kind.partition("-")[0] for kind in kinds if kind.startswith("A100-")}
    return {
        "key": node["NodeID"],
        "name": node["NodeManagerHostname"] or node["NodeManagerAddress"],
        "kinds": sorted(kinds),
        "gpus": int(resources.get("GPU", 0)),
        "cpus": float(resources.get("CPU", 0)),
    }


def _cause(error: Exception) -> str:
    """Return Ray's error in one line, without its list of ids."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:"))]
    words = [line for line in words if not line.startswith(("namespace:", "ip:", "name:"))]
    text = re.sub(r"Node Id: [0-9a-f]+ ?", "", " ".join(words))
    return f"{type(error).__name__}: {text[:400]}"


def _read(commands: queue.Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put(None)


def _serve(bridge: RayBridge, commands: queue.Queue[dict[str, Any] | None], out: Any) -> None:
    while True:
        while not commands.empty():
            command = commands.get()
            if command is None:
                return
            if command["command"] == "start":
                bridge.start(command)
            else:
                bridge.kill(command["group"])
        for event in bridge.events():
            print(json.dumps(event), file=out, flush=True)


def main(address: str, archive: str) -> int:
    """Run commands and report events until stdin ends; return the exit code.

    `archive` is the path of the packed project.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    commands: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_read, args=(commands,), daemon=True).start()
    try:
        bridge = RayBridge(address, Path(archive))
    except Exception as error:  # types depend on the kind of address
        print(json.dumps({"event": "refused", "cause": _cause(error)}), file=out, flush=True)
        return 1
    try:
        _serve(bridge, commands, out)
    finally:
        bridge.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
