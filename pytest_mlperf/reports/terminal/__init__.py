"""Format verdicts, comparisons, trends and plans for a terminal."""
