"""The command line: `console` holds thin commands, `output` prints what they return."""
