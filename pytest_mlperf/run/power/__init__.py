"""Measure the power and energy of a run; find reasons why they must not be judged."""
