"""Results over time: recorded in MLflow, registered as models, compared, watched."""
