"""One-shot where TVM dies on one task, as its searches have (apache/tvm #17934)."""

import os
import signal
from typing import Any

from fewtune.prediction import predict as predicting
from fewtune.prediction.predict import PredictJob
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.extract import workload_hash


class DyingJob(PredictJob):
    """A job that dies at the task whose workload it names."""

    dies_at: str

    def run(self) -> dict[str, Any]:
        """Choose for a lot."""
        usual = predicting.most_promising

        def dying(space: SearchSpace, *rest: Any) -> Any:
            if workload_hash(space.module) == self.dies_at:
                os.kill(os.getpid(), signal.SIGSEGV)
            return usual(space, *rest)

        predicting.most_promising = dying
        return super().run()
