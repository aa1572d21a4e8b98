"""Define what the engines of language models share."""
