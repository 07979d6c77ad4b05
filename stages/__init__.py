"""The pipeline's steps: one thin file per stage of ``dvc.yaml``, of the same name."""
