"""The pipeline's steps: one thin file per stage of ``dvc.yaml``, of the same name."""

from fewtune.util.child_python import end_by_interrupts_while_loading

end_by_interrupts_while_loading()
