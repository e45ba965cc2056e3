"""Import every module of verl, and every module that its code names, and print what fails: runs inside the image."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import json
import pathlib
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def main() -> None:
    """Print one JSON object: module → null, or [kind of error, message, module that is missing or null]."""
    warnings.simplefilter("ignore")
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        sys.stdout.write(json.dumps({"verl": ["ModuleNotFoundError", "No module named 'verl'", "verl"]}))
        return
    root = pathlib.Path(next(iter(spec.submodule_search_locations)))
    own = {_module(path, root): path for path in sorted(root.rglob("*.py"))}
    named: dict[str, set[str]] = {}
    for path in own.values():
        for module, names in _named(ast.parse(path.read_bytes())):
            named.setdefault(module, set()).update(names)
    foreign = {module: names for module, names in named.items() if module.partition(".")[0] != "verl"}
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        results = {module: _try(module, foreign.get(module, ())) for module in sorted({*own, *foreign})}
    sys.stdout.write(json.dumps(results, sort_keys=True))


def _module(path: pathlib.Path, root: pathlib.Path) -> str:
    parts = ("verl", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _named(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The absolute imports of a file, but for those under a condition or a guard: they may fail."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and node.module:
                yield node.module, tuple(alias.name for alias in node.names if alias.name != "*")
        elif not isinstance(node, ast.If) and not (
            isinstance(node, ast.Try) and any(_guards(handler) for handler in node.handlers)
        ):
            yield from _named(node)


def _guards(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in _GUARDS) for kind in kinds)


def _try(module: str, names: Iterable[str]) -> list[str | None] | None:
    """None if the module imports and has the names, else what went wrong."""
    try:
        found = importlib.import_module(module)
        for name in sorted(names):
            if not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
    except BaseException as e:  # a module may even call sys.exit
        if isinstance(e, KeyboardInterrupt):
            raise
        missing = getattr(e, "name", None) if isinstance(e, ModuleNotFoundError) else None
        return [type(e).__name__, str(e)[:500], missing]
    return None


if __name__ == "__main__":
    main()
    sys.stdout.flush()
