"""`python -m sparkckpt`: the command line, for where the entry point is not on the PATH."""

from sparkckpt.cli.console import main

main(prog_name="python -m sparkckpt")
