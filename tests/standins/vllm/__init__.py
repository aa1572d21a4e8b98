"""A stand-in for vLLM: its API as tests/contracts/vllm_api.json has it, on torch.

It is as strict as the original: whatever that version does not have raises. The version is that of
STANDIN_VLLM_VERSION, or the newest in the table. What goes wrong is chosen by the engine argument
additional_config = {"fault": …}, see `vllm.faults`.
"""

from vllm.api import VERSION

__version__ = VERSION
