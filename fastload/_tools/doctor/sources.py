"""Finds settings that a script makes only with CUDA, which a run without CUDA cannot observe."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

SETTINGS = frozenset({"benchmark", "autocast", "channels_last", "pin_memory"})


def cuda_only(files: Iterable[str]) -> list[str]:
    """The names of ``SETTINGS`` used under a condition, or in a call, that mentions CUDA."""
    settings: set[str] = set()
    for file in files:
        try:
            tree = ast.parse(Path(file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # not source code, or removed since
        for node in ast.walk(tree):
            if isinstance(node, (ast.If, ast.IfExp)):
                conditional = _words(node.test)
            elif isinstance(node, (ast.Call, ast.Assign, ast.keyword)):
                conditional = _words(node)  # such as benchmark = torch.cuda.is_available()
            else:
                continue
            if any("cuda" in word for word in conditional):
                settings |= SETTINGS.intersection(_words(node))
    return sorted(settings)


def _words(tree: ast.AST) -> Iterator[str]:
    """Names, attributes, keywords and strings in ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
