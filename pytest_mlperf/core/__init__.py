"""The pure domain: values and rules without I/O, clock, randomness or pytest."""
