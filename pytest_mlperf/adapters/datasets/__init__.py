"""Adapters of data sets, one module per data set."""
