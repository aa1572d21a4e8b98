"""What other programs read: JUnit, annotations, Markdown, JSON."""
