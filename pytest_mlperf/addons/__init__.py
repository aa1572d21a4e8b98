"""Optional commands and report formats, found by entry points."""
