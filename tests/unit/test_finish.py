"""docker/finish.py, the second builder's last step: from what uv leaves to the composer's files, byte for byte."""

import csv
import importlib.util
import io
import shutil
import zipfile
from pathlib import Path

import pytest

from support.wheels import EXECUTABLE, Wheel
from verlstack import plan, tar, wheel
from verlstack.content import Inline, Reader

ROOT = Path(__file__).parents[2]
VENV = wheel.Venv(root="opt/verl", python="3.10")
TAGS = frozenset(plan.tags("3.10", "x86_64-manylinux_2_35"))
SITE = "opt/verl/lib/python3.10/site-packages"
DEMO = Wheel(
    files={
        "demo/__init__.py": b"value = {1, 2, 'three'}\n",
        "demo/broken.py": b"print 'Python 2'\n",
        "demo/data.bin": b"\0\1",
        "demo/tool": b"#!/bin/sh\n",
        "demo-1.0.data/scripts/old-style": b"#!python\nprint('hello')\n",
        "demo-1.0.data/scripts/shell": b"#!/bin/sh\necho hello\n",
    },
    modes={"demo/tool": EXECUTABLE},
    entry_points="[console_scripts]\ndemo = demo.cli:App.run\nDemo-Two = demo.cli:two [x]\n"
    "[gui_scripts]\nwindow=demo:w\n",
)


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


finish = load("finish", ROOT / "docker" / "finish.py")
worker = load("pyc_worker_of_tests", ROOT / "src" / "verlstack" / "pyc_worker.py")


def as_uv_leaves_it(path, root):
    """Unpack a wheel as uv does: its own script template, INSTALLER and REQUESTED, and RECORD in another order."""
    site, scripts = root / SITE, root / "opt/verl/bin"
    scripts.mkdir(parents=True)
    rows = []

    def put(target, data, name, *, executable=False):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o775 if executable else 0o664)
        rows.append([name, "sha256=whatever", str(len(data))])

    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            data, name = archive.read(info), info.filename
            if ".data/scripts/" in name:
                script = name.rpartition("/")[2]
                data = data.replace(b"#!python\n", b"#!/out/opt/verl/bin/python3\n")
                put(scripts / script, data, f"../../../bin/{script}", executable=True)
            elif not name.endswith("RECORD"):
                put(site / name, data, name, executable=bool(info.external_attr >> 16 & 0o111))
    for script in ("demo", "Demo-Two", "window"):
        put(scripts / script, b"#!/x\n# uv's template\n", f"../../../bin/{script}", executable=True)
    dist_info = next(site.glob("*.dist-info"))
    for name in ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"):
        put(dist_info / name, b"uv", f"{dist_info.name}/{name}")
    put(site / "demo/__pycache__/data.cpython-39.pyc", b"foreign", "demo/__pycache__/data.cpython-39.pyc")
    rows.append([f"{dist_info.name}/RECORD", "", ""])
    with (dist_info / "RECORD").open("w", newline="") as record:
        csv.writer(record).writerows(rows)
    (root / "opt/verl/.lock").touch()
    (site / "demo.libs" / "empty").mkdir(parents=True)  # a folder's own entry in the zip


def folders(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}


def tree(root):
    """Path → (bytes, mode) of every file."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in root.rglob("*")
        if path.is_file()
    }


def composed(path, globs=()):
    """What the composer puts into the image for a wheel, in the same form."""
    planned = wheel.without(wheel.plan(path, VENV, TAGS), VENV, globs)
    with Reader() as reader:
        files = {entry.path: (reader.read(entry.content), entry.mode) for entry in planned.entries}
    bytecode = []
    for name, (data, _) in files.items():
        if name.endswith(".py") and (pyc := worker.compile_source(data, f"/{name}")):
            folder, _, base = name.rpartition("/")
            target = f"{folder}/__pycache__/{base[:-3]}.cpython-310.pyc"
            bytecode.append(tar.file(target, Inline(data=pyc)))
    record = wheel.record_entry(planned, VENV, bytecode)
    files |= {entry.path: (entry.content.data, entry.mode) for entry in (*bytecode, record)}
    return files


@pytest.fixture
def finished(tmp_path):
    path = DEMO.write(tmp_path)
    root = tmp_path / "out"
    as_uv_leaves_it(path, root)
    finish.finish(root.resolve(), "3.10", worker)
    return path, root


def test_both_builders_make_the_same_files(finished):
    path, root = finished
    files = composed(path)
    assert tree(root) == files
    assert folders(root) == {str(parent) for name in files for parent in Path(name).parents} - {"."}


@pytest.mark.parametrize(
    "globs", [("demo/__init__.py",), ("demo/*",), ("*data*", "demo/t[a-z]ol"), ("demo-1.0.dist-info/W*",)]
)
def test_both_builders_leave_the_same_files_out(tmp_path, globs):
    path, root = DEMO.write(tmp_path), tmp_path / "out"
    as_uv_leaves_it(path, root)
    lines = ["demo==1.0 --hash=sha256:00", *(f"# leave out: demo/{glob}" for glob in globs)]
    finish.finish(root.resolve(), "3.10", worker, "\n".join(lines))
    files = composed(path, globs)
    assert tree(root) == files
    assert files.keys() < composed(path).keys()
    assert folders(root) == {str(parent) for name in files for parent in Path(name).parents} - {"."}


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("demo/demo/none.py", "no demo/none.py that could be"),
        ("other/demo/x.py", "no package other of which files could"),
    ],
)
def test_what_is_not_there_cannot_be_left_out(tmp_path, place, says):
    root = tmp_path / "out"
    as_uv_leaves_it(DEMO.write(tmp_path), root)
    with pytest.raises(SystemExit, match=says):
        finish.finish(root.resolve(), "3.10", worker, f"# leave out: {place}")


def test_what_another_package_has_too_is_not_left_out_in_silence(tmp_path):
    """Two wheels may have one file; without it the RECORD of the other would lie."""
    root = tmp_path / "out"
    for name in ("demo", "zdemo"):
        as_uv_leaves_it(Wheel(name=name, files={"shared/x.py": b"1\n"}).write(tmp_path), tmp_path / name)
        shutil.copytree(tmp_path / name, root, dirs_exist_ok=True)
    with pytest.raises(FileNotFoundError, match=r"shared/x\.py"):
        finish.finish(root.resolve(), "3.10", worker, "# leave out: zdemo/shared/x.py")


def test_record_is_sorted_and_true(finished):
    _, root = finished
    site = root / SITE
    text = (site / "demo-1.0.dist-info/RECORD").read_text()
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == sorted(rows)
    assert ["demo-1.0.dist-info/RECORD", "", ""] in rows
    for name, _, size in rows:
        if size:
            assert (site / name).stat().st_size == int(size)
    listed = {(site / name).resolve() for name, *_ in rows}
    assert listed == {path.resolve() for path in root.rglob("*") if path.is_file()}


def test_folders_and_files_have_canonical_modes(finished):
    _, root = finished
    assert {path.stat().st_mode & 0o7777 for path in root.rglob("*") if path.is_dir()} == {0o755}
    assert (root / SITE / "demo/tool").stat().st_mode & 0o777 == 0o755
    assert (root / SITE / "demo/data.bin").stat().st_mode & 0o777 == 0o644


def test_a_file_that_uv_linked_into_its_cache_is_not_changed_there(tmp_path):
    """RECORD is replaced and not written through: uv links files where it can."""
    root = tmp_path / "out"
    as_uv_leaves_it(DEMO.write(tmp_path), root)
    record = root / SITE / "demo-1.0.dist-info/RECORD"
    kept = tmp_path / "cached"
    kept.hardlink_to(record)
    before = kept.read_bytes()
    finish.finish(root.resolve(), "3.10", worker)
    assert kept.read_bytes() == before != record.read_bytes()


def test_files_outside_the_venv_get_bytecode_for_their_final_place(tmp_path):
    source = tmp_path / "opt/verlstack/smoke_tests/deep/test_it.py"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"def test():\n    pass\n")
    finish.finish(tmp_path.resolve(), "3.10", worker)
    made = source.parent / "__pycache__/test_it.cpython-310.pyc"
    assert made.read_bytes() == worker.compile_source(source.read_bytes(), "/opt/verlstack/smoke_tests/deep/test_it.py")


def test_a_source_that_is_data_gets_no_bytecode(tmp_path, monkeypatch):
    monkeypatch.setattr(finish, "MAX_SOURCE", 10)
    (tmp_path / "a.py").write_bytes(b"value = 12345\n")
    finish.finish(tmp_path.resolve(), "3.10", worker)
    assert not list(tmp_path.rglob("*.pyc"))


def test_the_constants_are_the_composers():
    from verlstack import bytecode

    assert (finish.MAX_SOURCE, finish.MAX_NAME) == (bytecode._MAX_SOURCE, bytecode._NAME_MAX)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["-c", "x.cu"], ["-c", "x.cu"]),
        (["-gencode", "arch=compute_80,code=sm_80", "-O3"], ["-O3"]),
        (["-gencode=arch=compute_90,code=sm_90", "--threads", "4", "-O3"], ["-O3"]),
        (["--generate-code=arch=compute_90,code=sm_90", "--threads=4"], []),
    ],
)
def test_nvcc_gets_the_locks_architectures_alone(given, kept, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    nvcc = load("nvcc", ROOT / "docker" / "nvcc.py")
    assert nvcc.arguments(given, ["8.0", "9.0"]) == [
        "--objdir-as-tempdir",
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        *kept,
    ]
