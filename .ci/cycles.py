"""Fail if more than two modules of fastload import each other in a circle, lazily or not.

Run in a folder that holds the package without links; see `layers` in .ci/check.
"""

from __future__ import annotations

import sys

import grimp


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """The strongly connected components with more than two modules (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if imported not in number:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], number[imported])
        if lowest[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 2:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph.modules):
        if module not in number:
            visit(module)
    return found


if __name__ == "__main__":
    sys.path.insert(0, ".")
    found = circles(grimp.build_graph("fastload", cache_dir=None))
    for circle in found:
        print("import each other:", ", ".join(circle))
    sys.exit(bool(found))
