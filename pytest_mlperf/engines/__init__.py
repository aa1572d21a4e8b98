"""Adapters of inference engines, one module each."""
