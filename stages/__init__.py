"""The pipeline's steps: one thin file per stage of ``dvc.yaml``, of the same name."""

from fewtune.process.child_python import end_by_interrupts_while_loading

end_by_interrupts_while_loading(__name__)
