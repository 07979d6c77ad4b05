"""The command line of `fewtune`: each command's options, and their values."""
