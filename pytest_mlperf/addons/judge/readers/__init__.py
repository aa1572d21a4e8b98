"""Read other tools' result files; each module recognises and reads those of some tools."""
