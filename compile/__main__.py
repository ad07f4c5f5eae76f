"""`python -m compile`."""

from compile.cli import app

app(prog_name="compile")
