"""Read the data sets that the package supports, each in its own module."""
