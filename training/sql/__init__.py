"""The sampling plan: a SELECT a file, each making the table of its name from those before it."""
