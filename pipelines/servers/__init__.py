"""Servers that a command starts: each asks for a secret, and ends with the command."""
