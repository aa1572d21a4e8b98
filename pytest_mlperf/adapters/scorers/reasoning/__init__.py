"""Extract the answers of reasoning models, and grade them by kind."""
