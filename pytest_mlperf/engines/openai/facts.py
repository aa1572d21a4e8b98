"""What a server says of itself: its model's name, its version and how its cache is set up."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.files import some
from pytest_mlperf.engines.openai.client import Client
from pytest_mlperf.engines.openai.failures import Failed
from pytest_mlperf.engines.server_json import parse_json

CACHE = "vllm:cache_config_info{"
STABLE = (
    "block_size",
    "cache_dtype",
    "cpu_offload_gb",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_dtype_skip_layers",
    "num_gpu_blocks_override",
    "prefix_caching_hash_algo",
    "sliding_window",
    "swap_space",
)
"""Labels of vLLM's metric that say how it was set up; others differ from start to start."""


async def served_name(client: Client, model: str | None) -> str:
    """Return the name that the server knows its model by.

    It is the path where the server lists that, the one that is listed where there is one, and
    else the path: some servers list what they could load.

    Raises:
        RunError: There is no path, and not one that is listed; or the list cannot be had.
    """
    try:
        listed = _names(await client.get("/v1/models"))
    except Failed as failure:
        raise RunError(
            "engine",
            f"the server at {client.url} gives no list of its models ({failure}); set served_model "
            "to the name to be asked for, so that none is needed",
        ) from None
    if model is not None and (model in listed or len(listed) != 1):
        return model
    if len(listed) != 1:
        names = client.mask(some(sorted(listed)))
        has = f"lists {names}" if listed else "lists no model at /v1/models"
        raise RunError("engine", f"the server {has}; set served_model to the name to be asked for")
    return listed[0]


def _names(page: bytes | None) -> list[str]:
    try:
        return [str(entry["id"]) for entry in parse_json(page or b"{}").get("data") or []]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


async def server_facts(client: Client) -> Mapping[str, str]:
    """Return the server's version and how its cache is set up, where it says so."""
    facts = {}
    try:
        version = parse_json(await _page(client, "/version") or b"{}").get("version")
    except (ValueError, AttributeError):
        version = None
    if isinstance(version, str):
        facts["server.version"] = client.mask(version)
    for line in (await _page(client, "/metrics")).decode("utf-8", "replace").splitlines():
        if line.startswith(CACHE):
            labels = _labels(line[len(CACHE) : line.rfind("}")])
            facts.update(
                {f"server.{name}": client.mask(labels[name]) for name in STABLE if name in labels}
            )
            break
    return facts


async def _page(client: Client, path: str) -> bytes:
    """Return a page that a run can do without."""
    try:
        return await client.get(path) or b""
    except Failed:
        return b""


def _labels(text: str) -> Mapping[str, str]:
    """Return the labels of a line of Prometheus' text format."""
    found = {}
    for part in text.split('",'):
        name, _, value = part.partition('="')
        found[name.strip()] = value.removesuffix('"')
    return found
