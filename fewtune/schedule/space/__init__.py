"""Design spaces: what can be decided, drawn, moved and rated."""
