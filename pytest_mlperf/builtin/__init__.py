"""Provide a null engine and a synthetic data set, which need no model, files or libraries."""
