"""Selective tuning for TVM MetaSchedule: tune few tasks, serve them all."""

__version__ = "0.1.0"
