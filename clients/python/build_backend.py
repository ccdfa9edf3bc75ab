"""Builds the wheel and the source distribution (PEP 517, PEP 660), with Python's standard library alone.

A fresh virtual environment may have neither setuptools nor wheel, and a machine no network to fetch them from.
The package is a folder of Python files, so no more is needed than to put them into an archive.  The same sources
give the same archives.
"""

from __future__ import annotations

import ast
import base64
import gzip
import hashlib
import io
import os
import re
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

_HERE = Path(__file__).resolve().parent
_PACKAGE = "idemq"


def _project() -> Dict[str, Dict[str, Any]]:
    """The tables of pyproject.toml, whose values are all literals of Python as well; tomllib came with Python 3.11."""
    tables: Dict[str, Dict[str, Any]] = {}
    table: Dict[str, Any] = {}
    pending = ""
    for line in (_HERE / "pyproject.toml").read_text("utf-8").splitlines():
        header = re.fullmatch(r"\[([\w.-]+)\]", line.strip())
        if header and not pending:
            table = tables.setdefault(header.group(1), {})
            continue
        pending += line + "\n"
        assigned = re.match(r'\s*"?([\w-]+)"?\s*=\s*(.*)', pending, re.DOTALL)
        try:
            if assigned:
                table[assigned.group(1)] = ast.literal_eval(assigned.group(2).strip())
            pending = ""
        except (SyntaxError, ValueError):
            if not assigned or assigned.group(2).count("[") <= assigned.group(2).count("]"):
                pending = ""  # true, an inline table: of no use here
    return tables


def _named() -> Tuple[str, str]:
    project = _project()["project"]
    return project["name"], project["version"]


def _metadata() -> str:
    tables = _project()
    project = tables["project"]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        "License: PostgreSQL License",
        "License-File: LICENSE",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {dependency}" for dependency in project["dependencies"]),
    ]
    for extra, dependencies in tables["project.optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines.extend(f'Requires-Dist: {dependency}; extra == "{extra}"' for dependency in dependencies)
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + (_HERE / "README.md").read_text("utf-8")


def _sources() -> List[str]:
    """The files of the package."""
    kept = (".py", ".sql", ".typed")
    return sorted(path.relative_to(_HERE).as_posix() for path in (_HERE / _PACKAGE).rglob("*") if path.suffix in kept)


def _epoch() -> int:
    """1980 is the first year of an archive's times."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), 315532800)


def _info() -> Tuple[str, Dict[str, bytes]]:
    """The folder of a wheel's metadata, and its files but for RECORD."""
    name, version = _named()
    scripts = "".join(f"{script} = {target}\n" for script, target in _project()["project.scripts"].items())
    files = {
        "METADATA": _metadata().encode(),
        "WHEEL": b"Wheel-Version: 1.0\nGenerator: idemq\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "LICENSE": (_HERE / "LICENSE").read_bytes(),
        "entry_points.txt": f"[console_scripts]\n{scripts}".encode(),
        "top_level.txt": f"{_PACKAGE}\n".encode(),
    }
    return f"{name}-{version}.dist-info", files


def _wheel(directory: str, contents: Dict[str, bytes]) -> str:
    name, version = _named()
    folder, info = _info()
    contents = {**contents, **{f"{folder}/{file}": data for file, data in sorted(info.items())}}
    record = ""
    for path, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    contents[f"{folder}/RECORD"] = f"{record}{folder}/RECORD,,\n".encode()
    made = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, made), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, time.gmtime(_epoch())[:6])
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return made


def build_wheel(wheel_directory: str, config_settings: Optional[Any] = None, metadata_directory: Optional[str] = None) -> str:
    """PEP 517."""
    return _wheel(wheel_directory, {path: (_HERE / path).read_bytes() for path in _sources()})


def build_editable(wheel_directory: str, config_settings: Optional[Any] = None, metadata_directory: Optional[str] = None) -> str:
    """PEP 660: what is imported are the sources."""
    return _wheel(wheel_directory, {f"__editable__.{_PACKAGE}.pth": f"{_HERE}\n".encode()})


def build_sdist(sdist_directory: str, config_settings: Optional[Any] = None) -> str:
    """PEP 517."""
    name, version = _named()
    base = f"{name}-{version}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        files = {path: (_HERE / path).read_bytes() for path in ("LICENSE", "README.md", "build_backend.py", "pyproject.toml", *_sources())}
        for path, data in sorted({**files, "PKG-INFO": _metadata().encode()}.items()):
            entry = tarfile.TarInfo(f"{base}/{path}")
            entry.size, entry.mtime, entry.mode = len(data), _epoch(), 0o644
            archive.addfile(entry, io.BytesIO(data))
    with open(os.path.join(sdist_directory, f"{base}.tar.gz"), "wb") as file:
        with gzip.GzipFile("", "wb", 9, file, _epoch()) as compressed:
            compressed.write(packed.getvalue())
    return f"{base}.tar.gz"
