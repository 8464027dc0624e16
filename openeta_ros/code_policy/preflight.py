# SPDX-License-Identifier: Apache-2.0
"""A look through a snippet before it runs: what it may not use is refused with its line, in no time.

This is for whoever wrote the snippet, not for safety: text can always be written so that it is not seen
through. What keeps a snippet in is its process (`confine`, `isolation`).
"""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from typing import Any

#: What snippets may import, with whatever is below these names.
ALLOWED_IMPORTS = (
    '__future__',
    'bisect',
    'collections',
    'copy',
    'dataclasses',
    'enum',
    'functools',
    'heapq',
    'itertools',
    'json',
    'math',
    'numpy',
    'operator',
    'random',
    're',
    'statistics',
    'string',
    'time',
    'typing',
)
#: Below what is allowed, and yet not: the ways from NumPy to files and machine code.
FORBIDDEN_MODULES = ('numpy.ctypeslib', 'numpy.distutils', 'numpy.f2py', 'numpy.lib.format')

FORBIDDEN_NAMES = (
    '__builtins__',
    '__import__',
    '__loader__',
    '__spec__',
    'breakpoint',
    'compile',
    'eval',
    'exec',
    'exit',
    'globals',
    'help',
    'input',
    'locals',
    'quit',
    'vars',
)
#: Attributes that lead from any object to the interpreter's own, and those that read or write files.
FORBIDDEN_ATTRIBUTES = (
    'co_code',
    'cr_frame',
    'ctypes',
    'ctypeslib',
    'dump',
    'f_back',
    'f_builtins',
    'f_code',
    'f_globals',
    'f_locals',
    'fromfile',
    'genfromtxt',
    'gi_code',
    'gi_frame',
    'load',
    'loadtxt',
    'memmap',
    'mro',
    'save',
    'savetxt',
    'savez',
    'tb_frame',
    'tb_next',
    'tofile',
)
#: The only names with two underscores on both sides that a snippet needs.
ALLOWED_DUNDERS = ('__name__', '__init__', '__post_init__', '__call__', '__len__', '__iter__', '__getitem__',
                   '__repr__', '__str__', '__eq__', '__lt__', '__hash__', '__enter__', '__exit__', '__next__',
                   '__contains__', '__add__', '__sub__', '__mul__', '__neg__', '__doc__')  # fmt: skip
#: Calls that wait or move; a loop without end that makes none of them does nothing but use time up.
ACTING = ('step', 'chunk_step', 'move_arm', 'open_gripper', 'close_gripper', 'reset')
MAX_CODE_CHARS = 200_000


@dataclass(frozen=True)
class Finding:
    """Something in the text; `kind` is 'syntax' or 'forbidden' for what is refused, else 'warning'."""

    kind: str
    line: int
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return it in types that JSON has."""
        return asdict(self)


def inspect(code: str) -> list[Finding]:
    """Return what is wrong with a snippet, in the order of its lines; nothing when it may run."""
    if len(code) > MAX_CODE_CHARS:
        return [Finding('forbidden', 1, f'the snippet has {len(code)} characters, {MAX_CODE_CHARS} at most')]
    try:
        tree = ast.parse(code)
        compile(tree, '<snippet>', 'exec')
        visitor = _Visitor()
        visitor.visit(tree)
    except SyntaxError as error:
        return [Finding('syntax', error.lineno or 1, error.msg)]
    except (ValueError, RecursionError, MemoryError) as error:
        return [Finding('syntax', 1, f'it cannot be parsed: {error}')]
    return sorted(visitor.findings, key=lambda finding: finding.line)


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check_import(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ''
        if node.level:
            self._refuse(node, 'imports from a package of its own, which it does not have')
            return
        self._check_import(node, module)
        for alias in node.names:
            if _forbidden(f'{module}.{alias.name}'):
                self._check_import(node, f'{module}.{alias.name}')
            self._check_attribute(node, alias.name)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in FORBIDDEN_NAMES or (_dunder(node.id) and node.id not in ALLOWED_DUNDERS):
            self._refuse(node, f'uses the name {node.id}')

    def visit_Attribute(self, node: ast.Attribute) -> None:
        own = isinstance(node.value, ast.Name) and node.value.id == 'self' and not _dunder(node.attr)
        if not own:
            self._check_attribute(node, node.attr)
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:
            self._check_attribute(node, name)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # str.format reaches attributes by what stands in the text, and getattr by a text's own.
        if isinstance(node.value, str) and '__' in node.value and ('{' in node.value or _dunder(node.value)):
            self._refuse(node, f'has a text that names {node.value[:60]!r}')

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for value in node.values:  # text beside the expressions is text alone
            if isinstance(value, ast.FormattedValue):
                self.visit(value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):  # a docstring
            self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._refuse(node, 'has an async function; calls of api wait by themselves')

    def visit_While(self, node: ast.While) -> None:
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        inside = [child for statement in node.body for child in ast.walk(statement)]
        leaves = any(isinstance(child, ast.Break | ast.Return | ast.Raise) for child in inside)
        called = {child.func.attr for child in inside if isinstance(child, ast.Call)
                  and isinstance(child.func, ast.Attribute)}  # fmt: skip
        if endless and not called.intersection(ACTING):
            # One that leaves may be meant so: it polls. It is still said, as it may use all the time up.
            ending = 'moves nothing' if leaves else 'moves nothing and has no break'
            self.findings.append(Finding('warning', node.lineno, f'a loop without end {ending}'))
        elif endless and not leaves:
            self.findings.append(
                Finding('warning', node.lineno, 'a loop without end has no break: test step.done in it')
            )
        self.generic_visit(node)

    def _check_import(self, node: ast.AST, module: str) -> None:
        top = module.partition('.')[0]
        if top not in ALLOWED_IMPORTS or _forbidden(module):
            allowed = ', '.join(name for name in ALLOWED_IMPORTS if not name.startswith('_'))
            self._refuse(node, f'imports {module}; it may import {allowed}')

    def _check_attribute(self, node: ast.AST, name: str) -> None:
        private = name.startswith('_') and not (_dunder(name) and name in ALLOWED_DUNDERS)
        if private or name in FORBIDDEN_ATTRIBUTES:
            self._refuse(node, f'uses the attribute {name}')

    def _refuse(self, node: ast.AST, what: str) -> None:
        line: int = getattr(node, 'lineno', 1)
        self.findings.append(Finding('forbidden', line, f'line {line} {what}'))


def _forbidden(module: str) -> bool:
    return any(f'{module}.'.startswith(f'{name}.') for name in FORBIDDEN_MODULES)


def _dunder(name: str) -> bool:
    return name.startswith('__') and name.endswith('__')
