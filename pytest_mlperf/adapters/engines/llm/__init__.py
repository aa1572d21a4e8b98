"""Provide functions and classes that the language model engines share."""
