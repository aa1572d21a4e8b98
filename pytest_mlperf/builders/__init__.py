"""Builders of quantised checkpoints, one module each."""
