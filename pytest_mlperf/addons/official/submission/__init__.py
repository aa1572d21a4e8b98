"""Submission to MLPerf Inference: its content, its tree, and reasons to refuse it."""
