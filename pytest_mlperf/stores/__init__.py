"""Files that last: baselines and results."""
