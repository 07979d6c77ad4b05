"""When and where stages run: Prefect's flow, DVC's graph, MLflow's record, the command line."""
