"""The models of the zoo as files: ``python -m benchmarks.zoo NAME ...``."""

from benchmarks.zoo.registry import main

main()
