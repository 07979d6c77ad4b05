"""Strategies and a cost model from the literature, registered as any other package would.

They use public extension points alone: `fewtune.search.Explorer` and the cost model's protocol,
named by entry points in ``pyproject.toml``.
"""
