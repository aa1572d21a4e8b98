"""A real Ray cluster on this machine, in a process of its own: `python -m tests.ray_cluster`.

It reads a command a line and answers each with a line: `add NAME GPUS KIND` begins a node,
`remove NAME` ends it, the head is called "head", and `restart head` ends it and begins another one
at its address. At the end of its stdin all of it ends. Each
node has leases and projects of its own, as a machine has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STORE_BYTES = 80 * 1024 * 1024
"""The least that Ray takes for a node's objects."""


class RayCluster:
    """A cluster whose nodes are named by the test."""

    def __init__(self, folder: Path, *, client_port: int | None = None) -> None:
        """Begin its head, which has no processor to offer.

        Args:
            folder: Folder of its nodes' files.
            client_port: Port of `ray://`; None serves none.
        """
        self.folder = folder
        command = [sys.executable, "-m", __name__, str(folder), str(client_port or 0)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._answer()
        self.client_address = f"ray://127.0.0.1:{client_port}"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the cluster has ended"
        return str(json.loads(line))

    def tell(self, *words: str) -> None:
        """Give a command and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        self._answer()

    def add(self, name: str, gpus: int = 0, kind: str = "", **variables: str) -> Path:
        """Start a node with GPUs of a kind, and two processors; return its folder.

        Args:
            variables: Of its environment.
        """
        words = [f"{variable}={value}" for variable, value in variables.items()]
        self.tell("add", name, str(gpus), kind or "-", *words)
        return self.folder / name

    def remove(self, name: str) -> None:
        """End a node."""
        self.tell("remove", name)

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all of it."""
        self._process.communicate(timeout=60)


def _serve(folder: Path, client_port: int) -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's server of clients forks, which gRPC's own care of forks makes crash now and then.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    from ray.cluster_utils import Cluster

    # A real node finds this label itself.
    usual: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    served = {"ray_client_server_port": client_port} if client_port else {}
    head = {"num_cpus": 0, "num_gpus": 0, **usual, **served}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {"head": cluster.head_node}
    try:
        print(json.dumps(cluster.address), file=out, flush=True)
        port = int(cluster.address.rpartition(":")[2])
        for line in sys.stdin:
            command, name, *more = line.split()
            if command == "add":
                os.environ["PYTEST_MLPERF_FLEET"] = str(folder / name)
                os.environ["PYTEST_MLPERF_LEASES"] = str(folder / name)
                os.environ["NODE_NAME"] = name
                gpus, kind, *variables = more
                for variable, _, value in (one.partition("=") for one in variables):
                    os.environ[variable] = value
                nodes[name] = cluster.add_node(
                    num_cpus=2,
                    num_gpus=int(gpus),
                    labels={} if kind == "-" else {"mlperf.io/gpu": kind},
                    **usual,
                )
            else:
                cluster.remove_node(nodes.pop(name))
            if command == "restart":
                nodes[name] = cluster.add_node(**head, gcs_server_port=port)
            print(json.dumps("done"), file=out, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
