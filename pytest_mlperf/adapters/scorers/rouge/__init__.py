"""Score texts by ROUGE."""
