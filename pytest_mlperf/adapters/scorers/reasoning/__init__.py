"""Extract answers of reasoning models; grade letters, numbers, mathematics and programs."""
