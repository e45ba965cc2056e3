"""What pickles of checkpoints import: what belongs there, what attacks use, and what only a newer torch has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verldoctor.pickles import Name

# modules that run code, start processes, open files or sockets, or get at any attribute
_DANGEROUS_MODULES = re.compile(
    r"(?:os|posix|nt|ntpath|posixpath|subprocess|sys|shutil|socket|ssl|pty|runpy|code|codeop|bdb|pdb|cProfile|profile|timeit|trace"
    r"|importlib|imp|pkgutil|zipimport|ctypes|_ctypes|cffi|mmap|signal|commands|popen2|multiprocessing|_posixsubprocess|asyncio"
    r"|pickle|_pickle|cPickle|marshal|shelve|webbrowser|antigravity|http|urllib|urllib2|requests|httpx|aiohttp|ftplib|smtplib|telnetlib"
    r"|xmlrpc|tempfile|pathlib|io|_io|glob|fileinput|linecache|inspect|gc|operator|_operator|pip|setuptools|distutils|ensurepip|venv"
    r"|site|platform|getpass|idlelib|lib2to3|doctest|unittest|pydoc|test|threading|_thread|sqlite3|turtle|tkinter|nturl2path"
    r"|numpy\.testing|numpy\.f2py|numpy\.distutils|torch\.hub|torch\.utils\.cpp_extension|torch\.utils\.collect_env"
    r"|torch\.utils\.bottleneck|torch\._dynamo|torch\._inductor|torch\.package|torch\.fx|torch\.jit|torch\.distributed\.elastic)(?:\..*)?$"
)
_SAFE_BUILTINS = {
    *("set", "frozenset", "list", "dict", "tuple", "int", "float", "complex", "bool", "str", "bytes", "bytearray"),
    *("object", "slice", "range", "Ellipsis", "NoneType", "type"),
}
_DANGEROUS = {
    "torch.load", "torch.serialization.load", "torch.storage._load_from_bytes", "torch.multiprocessing.spawn",
    "functools.reduce", "types.FunctionType", "types.CodeType", "types.ModuleType", "_codecs.decode", "codecs.open",
    "numpy.load", "numpy.fromfile", "numpy.loadtxt", "numpy.memmap", "pandas.read_pickle", "joblib.load",
    "pandas.eval", "pandas.io.pickle.read_pickle", "dill.loads", "dill.load",
    "cloudpickle.loads", "cloudpickle.load", "torch.compile", "torch.ops.load_library",
}  # fmt: skip
_EXPECTED = re.compile(
    r"torch\.(?:_utils|_tensor)\._rebuild\w*$|torch\.(?:\w+Storage|storage\.\w+Storage|Tensor|Size|device|Generator|nn\.parameter\.\w+)$"
    r"|torch\.(?:float|bfloat|int|uint|bool|complex|half|double|long|short|quint|qint)\w*$"
    r"|torch\.distributed\.(?:_shard|_tensor|tensor|device_mesh|fsdp|remote_device|_remote_device|distributed_c10d|_sharded_tensor)\b"
    r"|torch\._C\._distributed_c10d\.\w+$|torch\.(?:strided|sparse_coo|contiguous_format|preserve_format|serialization\._get_layout)$"
    r"|torch\.(?:nn|optim)\."
    r"|collections\.(?:OrderedDict|defaultdict|deque|Counter)$|_codecs\.encode$|copy_?reg\._reconstructor$|datetime\.\w+$"
    r"|numpy\.(?:ndarray|dtype|core\.multiarray\.\w+|_core\.multiarray\.\w+|core\.numeric\.\w+|random\.\w+|random\._\w+\.\w+|\w*int\d+|float\d+|bool_)$"
)
# data.pt is the data loader, dataset and tokenizer in it, written with dill
_LOADER = re.compile(
    r"(?:torch\.utils\.data|torch\._C|torchdata|tensordict|verl|transformers|tokenizers|datasets|pandas|pyarrow|omegaconf)\."
    r"|(?:dill|dill\._dill|_dill|cloudpickle\.\w+)\.|functools\.partial$|enum\.\w+$|typing\.\w+$|random\.Random$|regex\.|re\."
)


def dangerous(name: Name, *, loader: bool = False) -> bool:
    """Whether a checkpoint (a data `loader`'s state) that imports `name` could do anything when it is loaded."""
    if name.module in ("builtins", "__builtin__", "__builtins__"):
        return name.name not in _SAFE_BUILTINS | ({"getattr"} if loader else set())  # dill's way to a method
    *path, last = name.name.split(".")  # protocol 4 may walk: torch and `os.system`, some function and `__globals__`
    walks = any(_DANGEROUS_MODULES.match(part) for part in path) or any(p.startswith("__") for p in (*path, last))
    full = f"{name.module}.{name.name}"
    return walks or bool(_DANGEROUS_MODULES.match(name.module)) or full in _DANGEROUS


def expected(name: Name, *, loader: bool) -> bool:
    """Whether `name` is what torch, verl and the libraries around them write into checkpoints."""
    if name.module in ("builtins", "__builtin__"):
        return name.name in _SAFE_BUILTINS
    full = f"{name.module}.{name.name}"
    return bool(_EXPECTED.match(full)) or (loader and bool(_LOADER.match(full)))


def newer_torch(name: Name) -> bool:
    """Whether `name` exists from torch 2.5 on only: DTensor moved out of torch.distributed._tensor then."""
    return name.module.startswith("torch.distributed.tensor._") or name == ("torch.distributed.tensor", "DTensor")
