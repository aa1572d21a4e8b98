"""Take one case from its baseline to its verdict: run, judge, confirm and record it."""
