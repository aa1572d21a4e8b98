"""Measure the power and energy of a run, and find reasons not to judge them."""
