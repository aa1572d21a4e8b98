"""How fast this project is, and what is asked of GPUs."""
