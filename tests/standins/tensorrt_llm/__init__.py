"""A stand-in for TensorRT-LLM's LLM API that runs small models on any CPU; for tests only.

Put this package's parent folder on PYTHONPATH and `import tensorrt_llm` finds it. It takes exactly
the names that tests/contracts/tensorrt_llm.json lists for its version, and refuses all others as
TensorRT-LLM does, so that what works on it uses nothing that TensorRT-LLM has not got. It shares no
code with TensorRT-LLM.
"""

import torch

from .api import LLM
from .settings import SamplingParams

# Its threads wait for each other busily: on a busy machine one is faster than two.
torch.set_num_threads(1)

__version__ = "1.2.1+standin"

__all__ = ["LLM", "SamplingParams"]
