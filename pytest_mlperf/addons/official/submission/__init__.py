"""Build a submission to MLPerf Inference: collect, check and write its files."""
