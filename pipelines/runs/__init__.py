"""A run: stages carried out in DVC's order, in processes of their own, shown by Prefect."""
