"""Derive verdicts from runs and scores; no I/O."""
