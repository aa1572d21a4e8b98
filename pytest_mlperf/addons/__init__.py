"""What some teams add: commands and report formats, found by entry points."""
