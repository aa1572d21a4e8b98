"""One case from its baseline to its verdict: runs it, judges it, confirms it, records it."""
