"""Sharing in the child process."""

from __future__ import annotations

from fewtune.artifacts import Skeleton
from fewtune.sharing.job import ShareJob
from fewtune.task.extract import read_tasks
from fewtune.tuning.job import Workplace


class SharingWork(ShareJob):
    """A job of sharing, with the session that does it."""

    def run(self, place: Workplace) -> None:
        """Share the schedules of the job's donors; see `fewtune.sharing.share`."""
        # Only the child needs the session and all that it imports.
        from fewtune.finals.finals import Finals
        from fewtune.sharing.session import Sharing

        by_name = {task.info.name: task for task in place.tasks}
        finals = None
        most, directory = self.options.finals, self.model
        # Finals need a model that runs on this processor.
        if most > 1 and directory is not None and place.device.can.finals_in_model:
            if (directory / Skeleton.file_name).is_file():
                tasks, skeleton = read_tasks(directory), Skeleton.read(directory)
                finals = Finals(skeleton, tasks, place.target, most, self.rules.finalists)
            else:
                place.progress.say(
                    f"no finals in the model: {directory} has no {Skeleton.file_name}"
                )
        Sharing(
            [by_name[name] for name in [*self.takers, *self.tuned]],
            self,
            place.target,
            place.journal,
            place.progress,
            place.pool,
            finals=finals,
            device=place.device,
        ).run()
