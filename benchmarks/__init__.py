"""What is claimed about speed and memory, as commands that print it."""
