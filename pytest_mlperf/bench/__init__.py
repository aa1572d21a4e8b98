"""Measure, judge, confirm and record one case of a session."""
