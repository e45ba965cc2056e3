"""The layout that DESIGN.md promises: imports point one way, versions stand in one place, no host is written down."""

import ast
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "verlstack"
MODULES = sorted(PACKAGE.rglob("*.py"))
ALL_SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_LINES = 400

# Highest first: cli, one module per verb, then what they are made of; at the bottom what knows of nothing above.
TOP = {
    "__main__",
    "cli",
    *(
        f"cli.{verbs}"
        for verbs in ("common", "base", "bundle", "check", "diff", "flash_attn", "pin", "publish", "reproduce", "smoke")
    ),
    *("cli.sbom", "cli.sign", "cli.attest"),
    "cli.stacks",
}
VERBS = {
    *("base.assemble", "base.show", "base.diff", "base.use"),
    "repin",
    "pin",
    "rebuild",
    "bundle",
    "compiling",
    "lock",
    "build",
    *("check.run", "check.stacks", "check.probe"),
    "smoke.run",
    "stacks",
    "reproduce",
    *("publish", "mirror", "promote", "export"),
    "prove",
    *("sbom.make", "signing.sign", "signing.verify", "attest"),
}
BOTTOM = {
    *(
        "errors",
        "canonical",
        "inherit",
        "tar",
        "content",
        "cache",
        "layer",
        "reading",
        "pins",
        "plan",
        "schema",
        "verltags",
        "shell",
        "engine",
        "progress",
        "order",
        "told",
        "network",
    ),
    "base.elf",
    *(
        "extension",
        "extension.pin",
        "extension.elf_file",
        "extension.elf_dynamic",
        "extension.elf_symbols",
        "extension.fatbin",
    ),
    *("extension.mangled", "extension.finding"),
}
ONLY_ERRORS = {"shell", "engine"}  # leaves, passed in
ALONE = {
    "reading",
    "errors",
    "canonical",
    "progress",
    "verltags",
    "pyc_worker",
    "enter_worker",
    "order",
    "schema",
    "told",
    "network",
}


def name(path):
    """A module's name below `verlstack`: `wheel`, `base.elf`; a package by its own name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports(path, *, typing_too=False):
    """Modules that a file imports anywhere in it, dotted; those for type checkers only on request."""
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not typing_too:
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def own(path):
    """Modules of verlstack that a file imports at run time."""
    known = {name(m) for m in MODULES} - {"__init__"}
    return {m.removeprefix("verlstack.") for m in imports(path) if m.startswith("verlstack.")} & known - {name(path)}


GRAPH = {name(path): own(path) for path in MODULES}


def test_something_is_looked_at():
    assert {"cli", "wheel", "errors"} <= set(GRAPH)
    assert {"content", "tar"} <= GRAPH["wheel"]
    assert "fetch" in GRAPH["workshop"]
    assert any(module.startswith("base.") for module in GRAPH["build"])


def test_nobody_imports_the_command_line():
    assert {m for m, below in GRAPH.items() if below & TOP} <= TOP


def test_verbs_are_imported_by_the_command_line_and_other_verbs_alone():
    assert {m for m, below in GRAPH.items() if below & VERBS} <= TOP | VERBS


def test_the_bottom_knows_nothing_above_it():
    for module in BOTTOM & set(GRAPH):
        assert GRAPH[module] <= BOTTOM, module
    for module in ONLY_ERRORS & set(GRAPH):
        assert GRAPH[module] <= {"errors", "told", "network", "order"}, module
    for module in ALONE & set(GRAPH):
        assert not GRAPH[module], module


def test_no_module_imports_itself_by_a_detour():
    def reachable(start):
        seen, todo = set(), list(GRAPH[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += GRAPH[module]
        return seen

    assert [m for m in GRAPH if m in reachable(m)] == []


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("subprocess", {"shell"}),
        ("docker", {"engine"}),
        ("multiprocessing", {"compose"}),
        ("verldoctor", set()),
        ("pyc_worker", set()),
        ("probe_worker", set()),
        ("enter_worker", set()),
    ],
)
def test_who_may_import_it(library, allowed):
    users = {name(p) for p in MODULES if any(library in m.split(".") for m in imports(p, typing_too=True))}
    assert users <= allowed


def test_no_other_way_to_start_a_program():
    apart = PACKAGE / "enter_worker.py"  # a program by itself, started by `shell`: it becomes what runs in an image
    assert apart in MODULES
    for path in set(MODULES) - {apart}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert not re.fullmatch(r"system|popen|fork|forkpty|(exec|spawn|posix_spawn).*", node.attr), path


@pytest.mark.parametrize(
    ("worker", "allowed"),
    [
        ("pyc_worker", {"importlib", "marshal", "struct", "sys", "threading", "typing", "warnings"}),
        ("enter_worker", sys.stdlib_module_names),
    ],
)
def test_a_worker_needs_the_standard_library_alone(worker, allowed):
    assert {m.split(".")[0] for m in imports(PACKAGE / f"{worker}.py")} <= allowed


def test_smoke_tests_do_not_import_verlstack():
    paths = sorted((ROOT / "smoke_tests").rglob("*.py"))
    assert paths
    for path in paths:
        assert not [m for m in imports(path, typing_too=True) if m.split(".")[0] == "verlstack"], path


def test_the_docker_folder_does_not_shadow_the_sdk():
    assert not (ROOT / "docker" / "__init__.py").exists()


@pytest.mark.parametrize("path", ALL_SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_a_module_opens_with_one_sentence(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = text.partition("\n\n")[0]
    assert first.endswith("."), "a module opens with a docstring"
    assert "\n" not in first, "its first paragraph is one line"
    if PACKAGE in path.parents:
        assert len(re.split(r"(?<=[.!?])\s+(?=\w)", first)) == 1, "and one sentence"


@pytest.mark.parametrize("path", ALL_SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_a_module_is_not_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


# -- what no file may hold


def listed():
    """Every file that is or would be committed; skipped outside a checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no git")
    if done.returncode:
        pytest.skip("not a git checkout")
    return [path for n in done.stdout.decode().split("\0") if n and (path := ROOT / n).is_file()]


def index_hosts():
    """Hosts of package indexes and mirrors: the default index that pip knows, and what this machine's apt uses."""
    hosts = set()
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        pass
    else:
        hosts |= {PyPI.netloc, PyPI.file_storage_domain}
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            hosts |= {
                urllib.parse.urlsplit(address).hostname or "" for address in re.findall(r"https?://[^\s\]]+", text)
            }
    return sorted(host for host in hosts if "." in host and not re.fullmatch(r"[\d.]+", host))


def test_no_file_names_an_index_or_a_mirror():
    hosts = index_hosts()
    if not hosts:
        pytest.skip("this machine knows neither an index nor a mirror")
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(host)}(?![\w-])" for host in hosts).encode())
    found = [f"{p.relative_to(ROOT)}: {m[0].decode()}" for p in listed() if (m := pattern.search(p.read_bytes()))]
    assert found == []


# A name, `==` and a version; docs and READMEs may show output, constraints/ is where versions belong.
_PIN = re.compile(r"(?<![\w\"'=!<>~])[A-Za-z][A-Za-z0-9_.-]*(\[[\w,]+\])?==\d[\w.+!*]*")
_ARG = re.compile(r"^ARG\s+\w*VERSION\w*=\S+", re.MULTILINE)


def _places():
    places = [
        *(ROOT / "src").rglob("*"),
        *(ROOT / "docker").rglob("*"),
        *(ROOT / ".github").rglob("*"),
        *(ROOT / ".ci").rglob("*"),
    ]
    places += [ROOT / n for n in ("Makefile", "noxfile.py", "Dockerfile")]
    knowledge = {"rules", "data"}  # what verldoctor knows to break, and which tags exist: facts, not choices
    return sorted(p for p in places if p.is_file() and p.suffix != ".pyc" and not knowledge & set(p.parts))


def test_versions_are_chosen_in_one_place():
    found = []
    for path in _places():
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for p in (_PIN, _ARG) for m in p.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("pip install torch==2.3.1", True),
        ("'ray[default]==2.10'", False),
        (" ray[default]==2.10", True),
        ("if a.b == 3", False),
        ("x==y", False),
        ("f'{name}=={version}'", False),
        ("numpy>=1.26", False),
    ],
)
def test_what_counts_as_a_pin(text, hit):
    assert bool(_PIN.search(text)) is hit


def test_paths_of_one_machine_are_not_written_down():
    pattern = re.compile(re.escape(str(ROOT)).encode() + rb"/")
    if len(ROOT.parts) < 3:
        pytest.skip("the checkout lies at the root")
    found = [str(p.relative_to(ROOT)) for p in listed() if pattern.search(p.read_bytes())]
    assert found == []
