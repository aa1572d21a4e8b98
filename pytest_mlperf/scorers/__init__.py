"""Scorers equal to MLPerf's reference scripts, one module each."""
