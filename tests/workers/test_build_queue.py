"""The modules that are given to workers to build: each once, also while more are added."""

from __future__ import annotations

from fewtune.workers.build_queue import Feed


def test_a_feed_gives_each_module_once_and_what_was_put_back_first() -> None:
    feed = Feed(["first"], is_open=True)
    assert feed.take() == 0
    assert feed.take() is None
    assert feed.goes_on
    feed.add("second")
    feed.add("third")
    feed.read_news()
    assert (feed.take(), feed[1], len(feed)) == (1, "second", 3)
    feed.put_back(1)
    feed.close()
    assert (feed.take(), feed.take()) == (1, 2)
    assert not feed.goes_on
