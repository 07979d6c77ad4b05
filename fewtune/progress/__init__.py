"""Progress of a session: what a terminal, a notebook or a caller shows."""
