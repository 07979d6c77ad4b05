"""Be told when the nightly flow fails: a model became slower than its noise, or a stage failed.

    PREFECT_API_URL=http://127.0.0.1:4200/api python examples/notify_on_regression.py WEBHOOK

Makes an automation at the Prefect server: it posts the failed run's name and message, which names
models, stages and kernels, to the address WEBHOOK. Run again, it replaces what it made before.
"""

from __future__ import annotations

import contextlib
import sys

from prefect.automations import Automation, EventTrigger
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.events.actions import SendNotification

NAME = "fewtune-regression"


def notify(webhook: str) -> None:
    """Have failed runs of the nightly deployment posted to ``webhook``."""
    block = CustomWebhookNotificationBlock(
        name=NAME, url=webhook, json_data={"text": "{{subject}}\n{{body}}"}
    )
    block_id = block.save(NAME, overwrite=True)
    with contextlib.suppress(ValueError):  # there is none yet
        Automation.read(name=NAME).delete()
    Automation(
        name=NAME,
        trigger=EventTrigger(
            expect={"prefect.flow-run.Failed"},
            match_related={
                "prefect.resource.role": "deployment",
                "prefect.resource.name": "nightly",
            },
            posture="Reactive",
            threshold=1,
        ),
        actions=[
            SendNotification(
                block_document_id=block_id,
                subject="fewtune: {{ flow_run.name }} failed",
                body="{{ flow_run.state.message }}",
            )
        ],
    ).create()


if __name__ == "__main__":
    notify(sys.argv[1])
