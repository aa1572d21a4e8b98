"""Define the data types of cases and results, and the rules, without I/O, clock or pytest."""
