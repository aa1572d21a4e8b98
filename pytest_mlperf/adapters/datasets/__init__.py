"""Read data sets; each has a module."""
