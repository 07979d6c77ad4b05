"""Every hook into TVM's inside names the test that fails without it."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parent.parent.parent


def generator() -> ModuleType:
    path = PROJECT / "docs" / "generate_upgrading.py"
    spec = importlib.util.spec_from_file_location("generate_upgrading", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_hook_names_a_test_that_exists():
    hooks = generator().hooks()
    assert len(hooks) > 10
    for hook in hooks:
        path, _, name = hook.test.partition("::")
        assert path, f"{hook.file}: {hook.name} names no test"
        tests = {
            node.name
            for node in ast.walk(ast.parse((PROJECT / path).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        assert name.partition("[")[0] in tests, f"{hook.file}: {hook.name} names {hook.test}"
