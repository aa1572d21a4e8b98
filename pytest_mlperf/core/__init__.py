"""Define the data types of cases and results, and functions on them, without I/O or pytest."""
