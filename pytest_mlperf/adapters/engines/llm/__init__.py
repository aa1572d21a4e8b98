"""What the engines of language models share."""
