"""Answers of reasoning models: taken out of what they wrote, and graded by kind."""
