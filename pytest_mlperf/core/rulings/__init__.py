"""Pure rules: numbers in, verdicts out."""
