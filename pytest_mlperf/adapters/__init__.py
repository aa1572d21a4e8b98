"""Provide the engines, data sets, scorers and checkpoint builders that a suite names."""
