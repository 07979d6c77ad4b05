"""What can be set about measuring whole models."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field

_LEAST_ROUNDS = 3


class BenchmarkOptions(BaseModel, extra="forbid"):
    """How long a model is measured."""

    rounds: int = Field(
        default=30,
        ge=3,
        le=10_000,
        description="most rounds of all variants in turn; fewer where every median is known to "
        "one per cent before",
    )
    copies: int = Field(
        default=3,
        ge=1,
        le=16,
        description="copies of every library, and of onnxruntime's session, that take turns: how "
        "fast weights are read depends on the memory that they happen to get",
    )
    wait_s: float = Field(
        default=30,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="most seconds spent, while other processes or the host take cores, on waiting "
        "and on measuring disturbed rounds again; what stays disturbed is marked",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of the random inputs")


class CompareOptions(BenchmarkOptions):
    """How long two libraries of a model are measured, and how often anew."""

    processes: int = Field(
        default=4,
        ge=1,
        le=32,
        description="processes, one after the other, that share the rounds; an even number of "
        "them, for what is loaded first is slower, and they take turns in it",
    )

    @property
    def of_a_process(self) -> Self:
        """The same for one process, with its part of the time to wait."""
        return self.model_copy(update={"wait_s": self.wait_s / self.processes})

    @property
    def rounds_each(self) -> int:
        """Rounds of one process."""
        return max(_LEAST_ROUNDS, -(-self.rounds // self.processes))
