"""The journal that lies with a client: what it waits for, and what a client that is back gets."""

from __future__ import annotations

from typing import Any

from fewtune.fleet.sessions import EventLog

START = {"kind": "start", "task": "a"}
RUN = {"kind": "run", "run": "its name"}


def batch(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "batch", "task": "a", "trials": [{"trace": [number]}], **more}


def test_a_batch_is_fetched_as_a_whole_before_the_next_one_begins() -> None:
    told: list[str] = []
    log = EventLog([RUN], lambda event: told.append(event["kind"]), lambda: told.append("waited"))
    # Nothing was measured yet.
    log.hand_over()
    for event in (START, START, batch(1), batch(2), START, START, batch(3)):
        log.append(event)
    assert told == ["start", "start", "batch", "batch", "waited", "start", "start", "batch"]
    log.hand_over()
    log.hand_over()
    assert told[-2:] == ["batch", "waited"]


def test_a_client_that_is_back_gets_what_comes_after_the_last_that_it_has() -> None:
    log = EventLog([RUN], lambda event: None)
    for event in (START, batch(1, elapsed_s=1.5), START, batch(2, elapsed_s=2.5)):
        log.append(event)
    # Its clock is another one, and it says where an event comes from.
    known = [RUN, START, batch(1, elapsed_s=7.5, on="tcp://machine")]
    assert log.unfetched(known) == [START, batch(2, elapsed_s=2.5)]
    assert log.unfetched([RUN]) == log.own
    assert not log.is_all_of(known)
    everything = [*known, START, batch(2, elapsed_s=9.5, on="tcp://machine")]
    assert log.unfetched(everything) == []
    assert log.is_all_of(everything)
    # What was measured elsewhere is not known here: the session is made anew.
    assert not log.is_all_of([*everything, batch(3, on="tcp://another")])


def test_what_is_only_begun_is_not_fetched() -> None:
    log = EventLog([RUN], lambda event: None)
    for event in (START, batch(1), START):
        log.append(event)
    assert log.unfetched([RUN, START, batch(1)]) == []
