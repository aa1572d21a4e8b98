"""Define functions and classes that the engines of language models share."""
