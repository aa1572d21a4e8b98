# ruff: noqa: N802, ARG002 - methods have the names and arguments of the protocol
"""A KServe v2 server that gives the same scores to every request, as fast as Python can.

Run as `python kserve_echo.py HTTP_PORT GRPC_PORT`, with tritonclient installed; its model "echo"
takes "image", FP32 of shape (-1, 3, 32, 32), and gives "logits", FP32 of shape (-1, 10).
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

SERVER = {"name": "echo", "version": "1", "extensions": ["binary_tensor_data"]}
TENSORS: dict[str, Any] = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 32, 32]}],
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
}
MODEL = {"name": "echo", "versions": ["1"], "platform": "none", **TENSORS}
ROW = struct.pack("<10f", *range(10))


def reply(path: bytes, body: bytes, length: int) -> bytes:
    """Return a whole response."""
    raw = b""
    if path.endswith(b"/infer"):
        batch = json.loads(body[:length])["inputs"][0]["shape"][0]
        raw = ROW * batch
        output: dict[str, Any] = {"name": "logits", "datatype": "FP32", "shape": [batch, 10]}
        output["parameters"] = {"binary_data_size": len(raw)}
        said: object = {"model_name": "echo", "model_version": "1", "outputs": [output]}
    elif path == b"/v2":
        said = SERVER
    elif path == b"/v2/models/echo":
        said = MODEL
    else:
        said = {}
    text = json.dumps(said).encode()
    status = b"404 Not Found" if path.endswith(b"/config") else b"200 OK"
    return (
        b"HTTP/1.1 %b\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        % (status, len(text), len(text) + len(raw))
        + text
        + raw
    )


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one connection until it closes."""
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            fields = dict(line.partition(b": ")[::2] for line in lines[1:])
            size = int(fields.get(b"content-length", 0))
            body = await reader.readexactly(size)
            length = int(fields.get(b"inference-header-content-length", size))
            writer.write(reply(lines[0].split()[1], body, length))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The same over gRPC."""

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Say yes."""
        return service_pb2.ServerReadyResponse(ready=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Say yes."""
        return service_pb2.ModelReadyResponse(ready=True)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Return what describes the server."""
        return service_pb2.ServerMetadataResponse(**SERVER)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Return what describes the model."""
        return service_pb2.ModelMetadataResponse(**MODEL)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Answer."""
        batch = request.inputs[0].shape[0]
        answer = service_pb2.ModelInferResponse(model_name="echo", model_version="1")
        answer.outputs.add(name="logits", datatype="FP32", shape=[batch, 10])
        answer.raw_output_contents.append(ROW * batch)
        return answer


async def main(http_port: int, grpc_port: int) -> None:
    """Serve both until killed."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    listening = await asyncio.start_server(serve, "127.0.0.1", http_port, limit=1 << 24)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
