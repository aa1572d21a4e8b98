"""Adapters of data sets, one module each."""
