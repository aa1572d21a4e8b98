"""Start child processes, read their events, and end them."""
