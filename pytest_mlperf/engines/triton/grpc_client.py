"""KServe v2 over gRPC, with tritonclient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_mlperf.engines.triton.address import Address
from pytest_mlperf.engines.triton.client import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPTIONS = (
    # Samples and answers may be larger than gRPC's 4 MiB.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Clients of one server would share a connection, and large messages wait for each other.
    ("grpc.use_local_subchannel_pool", 1),
    # As over HTTP, no proxy that a variable of the environment names stands in between.
    ("grpc.enable_http_proxy", 0),
)

LOST = frozenset({"StatusCode.UNAVAILABLE", "StatusCode.CANCELLED"})

LATE = "StatusCode.DEADLINE_EXCEEDED"


class GrpcClient:
    """One channel with a connection of its own."""

    def __init__(self, address: Address, model: str, version: str, *, timeout_s: float) -> None:
        """Connect at the first request.

        Args:
            address: Of the server.
            model: Name of a model.
            version: Of the model; "" leaves it to the server.
            timeout_s: Time in which an answer must be here.
        """
        from tritonclient.grpc import InferenceServerClient

        self._client = InferenceServerClient(
            address.netloc, ssl=address.secure, channel_args=list(OPTIONS)
        )
        self._named = {"model_name": model, "model_version": version}
        self._timeout_s = timeout_s

    def server_ready(self) -> bool:
        """Return what ServerReady says."""
        return bool(self._call(self._client.is_server_ready))

    def model_ready(self) -> bool:
        """Return what ModelReady says; False where it is an error, as for an unknown model."""
        try:
            return bool(self._call(self._client.is_model_ready, **self._named))
        except RequestError as error:
            if error.lost:
                raise
            return False

    def server(self) -> Mapping[str, Any]:
        """Return what ServerMetadata gives."""
        return self._read(self._client.get_server_metadata)

    def model(self) -> Mapping[str, Any]:
        """Return what ModelMetadata gives."""
        return self._read(self._client.get_model_metadata, **self._named)

    def config(self) -> Mapping[str, Any]:
        """Return what ModelConfig gives; {} if the server has no such method."""
        try:
            found = self._read(self._client.get_model_config, **self._named).get("config")
        except RequestError as error:
            if error.lost:
                raise
            return {}
        return found if isinstance(found, dict) else {}

    def names(self) -> Sequence[str]:
        """Return the names in the server's repository, where it has that extension."""
        try:
            found = self._read(self._client.get_model_repository_index)
        except RequestError:
            return []
        return [str(each.get("name")) for each in found.get("models", ())]

    def infer(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> tuple[Sequence[NDArray[Any]], str]:
        """Return outputs, and the version of the model that gave them."""
        from tritonclient.grpc import InferInput, InferRequestedOutput
        from tritonclient.utils import np_to_triton_dtype

        given = []
        for name, array in inputs.items():
            each = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            given.append(each.set_data_from_numpy(array))
        wanted = [InferRequestedOutput(name) for name in outputs]
        result = self._call(self._client.infer, inputs=given, outputs=wanted, **self._named)
        arrays = []
        for name in outputs:
            try:
                array = result.as_numpy(name)
            # What a broken answer makes of the parser is not foreseen.
            except Exception as error:
                raise RequestError(
                    f"an answer whose output {name!r} cannot be read "
                    f"({type(error).__name__}: {error})"
                ) from error
            if array is None:
                raise RequestError(f"an answer without output {name!r}")
            arrays.append(array)
        return arrays, str(result.get_response().model_version)

    def close(self) -> None:
        """Close the channel, also under a request of another thread: that then fails."""
        self._client.close()

    def _read(self, method: Callable[..., Any], **given: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._call(method, as_json=True, **given)
        return found

    def _call(self, method: Callable[..., Any], **given: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return method(client_timeout=self._timeout_s, **given)
        except InferenceServerException as error:
            status, words = str(error.status()), str(error.message())
            if status == LATE:
                raise RequestError(f"no answer within {self._timeout_s:g} s") from error
            text = f"gRPC {status.removeprefix('StatusCode.')}: {words}"
            raise RequestError(text, lost=status in LOST) from error
        except ValueError as error:  # gRPC's way to say that the channel is closed
            raise RequestError(str(error), lost=True) from error
