"""ROUGE: the scorer, and what it and Mixtral's scorer compute it with."""
