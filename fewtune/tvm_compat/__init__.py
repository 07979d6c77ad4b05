"""The only place that touches TVM's inside.

One function a hook. Its docstring says why the hook is there, and names the test that fails without
it, in a line of its own: ``Test: tests/PATH.py::test_name``. `docs/upgrading-tvm.md` is made from
these docstrings.
"""
