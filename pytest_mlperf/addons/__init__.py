"""Provide optional commands and report formats, found by entry points."""
