"""The checkout as text: where its files are, and what a Python file in it imports and defines."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

# The folders that are linked into the package asterism, as they come to be.
FOLDERS: Final = tuple(
    name
    for name in ("actors", "router", "storage", "sdk", "gateways", "spark")
    if (ROOT / name).is_dir()
)
# Around the broker: what starts its processes, and what people and tests ask of it.
AROUND: Final = ("__main__", "attached", "cli", "pytest_plugin", "running", "testing")
_NOT_OURS: Final = frozenset({".git", "build", "dist", "asterism-data", "__pycache__"})


def all_files() -> list[Path]:
    """Every file of the project, links and everything hidden but ``.ci`` left out."""
    return sorted(_files_under(ROOT))


def _files_under(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() or path.name in _NOT_OURS or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            # A hidden folder is a cache, an environment or a repository; ours has its own name.
            if not path.name.startswith(".") or path.name == ".ci":
                yield from _files_under(path)
        else:
            yield path


def documents() -> list[Path]:
    """What people read."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def kernel_sources() -> list[Path]:
    """The package's own files, without what is linked into it and what is around the broker."""
    files = sorted((ROOT / "asterism").glob("*.py"))
    return [path for path in files if path.stem not in AROUND]


def around_sources() -> list[Path]:
    """What is around the broker."""
    files = sorted((ROOT / "asterism").glob("*.py"))
    command_line = sorted((ROOT / "asterism" / "cli").glob("*.py"))
    return [path for path in files if path.stem in AROUND] + command_line


def folder_sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def package_sources() -> list[Path]:
    """Everything that is installed."""
    linked = [path for folder in FOLDERS for path in folder_sources(folder)]
    return kernel_sources() + around_sources() + linked


def all_sources() -> list[Path]:
    return package_sources() + folder_sources("tests")


def relative(path: Path) -> str:
    """A path as people say it, from the root of the checkout."""
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=relative(path))


def does_io(path: Path) -> bool:
    """Whether a file of the package is one of those that may touch the world."""
    name = path.name
    return name in ("host.py", "__main__.py", "config.py") or name.endswith("_host.py")


def module_name(path: Path) -> str:
    """The one name under which a file may be imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    if parts[0] in FOLDERS:
        parts.insert(0, "asterism")
    return ".".join(parts)


@cache
def modules() -> frozenset[str]:
    """Every module and package that the checkout holds."""
    return frozenset(module_name(path) for path in all_sources())


def imports(path: Path) -> set[str]:
    """The modules a file imports, anywhere in it, by absolute name; ours as exactly as can be."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _imported_from(path, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules() else base)
    return found


def _imported_from(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module_name(path).split(".")
    dropped = node.level - (path.name == "__init__.py")
    kept = package[: len(package) - dropped]
    return ".".join([*kept, node.module] if node.module else kept)


def defined_names(path: Path) -> set[str]:
    """The functions, classes and variables at the top of a file, and ``Class::method`` for each."""
    names: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            names.update(
                f"{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            )
        elif isinstance(node, ast.Assign):
            # A state machine becomes a test by an assignment: TestTopic = Machine.TestCase.
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names
