"""What only a machine with an NVIDIA GPU can answer: `python -m benchmarks.gpu`."""
