"""Checkpoints that are built, beforehand and once."""
