"""A submission to MLPerf Inference: what it is made of, its tree, and what would be refused."""
