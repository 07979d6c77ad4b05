"""Global functions that TVM finds by name."""

from fewtune.runtime.tvm import tvm
from fewtune.tvm_compat.values import set_function


def test_the_last_function_of_a_name_is_called():
    for number in (1, 2):
        set_function("fewtune.test", lambda number=number: number)
    assert tvm.get_global_func("fewtune.test")() == 2
