"""How far a session is: what a terminal, a notebook or a caller is shown of it."""
