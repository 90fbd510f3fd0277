"""The one rule threads of a model must keep: no state outside their locals (model_explorer.py says why)."""

from __future__ import annotations

import ast
import inspect
import types


def check_threads_are_plain(module: types.ModuleType) -> list[str]:
    """What in `module` the automaton could not see; empty when all is well.

    A yield may be a statement, an assigned value or a returned one, and not inside for, with, try or a comprehension:
    the state of those is in no local."""
    tree = ast.parse(inspect.getsource(module))
    allowed, wrong = set(), []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Expr, ast.Assign, ast.Return)) and isinstance(node.value, (ast.Yield, ast.YieldFrom)):
            allowed.add(node.value)
    hiding = (ast.For, ast.With, ast.Try, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Yield, ast.YieldFrom)) and node not in allowed:
            wrong.append(f"line {node.lineno}: a yield inside an expression")
        if isinstance(node, hiding) and any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node)):
            wrong.append(f"line {node.lineno}: a yield inside {type(node).__name__}")
    return wrong
