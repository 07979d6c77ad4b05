"""A run: stages in DVC's order, each in a process of its own, shown by Prefect."""
