"""Read the result files of one tool per module: a recogniser, tables of fields, facts."""
