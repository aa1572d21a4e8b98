"""A model class for MLServer that runs an ONNX file; it needs mlserver and onnxruntime only."""

from __future__ import annotations

from typing import Any

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from onnxruntime import InferenceSession, SessionOptions

DATATYPES = {
    "tensor(float)": "FP32",
    "tensor(float16)": "FP16",
    "tensor(double)": "FP64",
    "tensor(int8)": "INT8",
    "tensor(uint8)": "UINT8",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(bool)": "BOOL",
}


class OnnxModel(MLModel):  # type: ignore[misc] # its library is not installed beside mypy
    """Gives the outputs that a request names, or all of them."""

    async def load(self) -> bool:
        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = InferenceSession(
            self.settings.parameters.uri, options, providers=["CPUExecutionProvider"]
        )
        self.inputs = list(map(described, self._session.get_inputs()))
        self.outputs = list(map(described, self._session.get_outputs()))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feed = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        names = [each.name for each in payload.outputs or self.outputs]
        try:
            arrays = self._session.run(names, feed)
        except Exception as error:
            raise InferenceError(str(error)) from error
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            outputs=[
                NumpyCodec.encode_output(name, array)
                for name, array in zip(names, arrays, strict=True)
            ],
        )


def described(node: Any) -> MetadataTensor:
    """Return a node of onnxruntime as the protocol describes it: -1 is any length."""
    shape = [length if isinstance(length, int) else -1 for length in node.shape]
    return MetadataTensor(name=node.name, datatype=DATATYPES[node.type], shape=shape)
