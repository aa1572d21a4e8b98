"""Define the values and rules of a case, without I/O, clock, randomness or pytest."""
