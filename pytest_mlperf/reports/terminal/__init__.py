"""Format verdicts, comparisons and plans for a terminal."""
