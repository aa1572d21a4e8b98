"""MLCommons LoadGen runs as pytest tests, judged against baselines kept in git."""

__version__ = "0.1.0"
