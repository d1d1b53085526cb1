"""The parts of the machine that a sandbox shows, read-only: system programs, and what an agent's command needs more."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# None of them contains a secret. Of `ssl` and `pki` only certificates and settings: private keys are beside them.
_ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "passwd", "protocols", "services",
    "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf",
    "pki/ca-trust", "pki/java/cacerts", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf",
)  # fmt: skip
_VIRTUAL_ENVIRONMENT_PARTS = ("pyvenv.cfg", "bin", "include", "lib", "lib64", "share")
_SHEBANG_BYTES = 512


def program_mounts() -> Iterator[str]:
    """Yield the options of bwrap for the system's programs."""
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def setting_mounts() -> Iterator[str]:
    """Yield the options of bwrap for users, host names, certificates and the time zone."""
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    # Often a link into /run, of which nothing else is shown.
    yield from ("--ro-bind-try", str(Path("/etc/resolv.conf").resolve()), "/etc/resolv.conf")


class UnsafeCommandError(ValueError):
    """The command names a path that contains, or is in, the bot's own data, which no sandbox shows."""


def command_mounts(commands: Iterable[Sequence[str]], search_path: str, data_dir: Path) -> tuple[str, ...]:
    """Return the options of bwrap that make commands readable. Raises UnsafeCommandError.

    They show what each names by absolute path, its program, the program's interpreter, and the folder each is
    installed in.
    """
    found = _Found(search_path, data_dir)
    for command in commands:
        program = shutil.which(command[0], path=search_path)
        if program is not None:
            found.program(Path(program))
        for argument in command:
            if argument.startswith("/") and os.path.lexists(argument):
                found.program(Path(argument))
    return tuple(found.options)


class _Found:
    """A collection of mounts, without those that an earlier mount includes."""

    def __init__(self, search_path: str, data_dir: Path) -> None:
        self._search_path = search_path
        self._data_dir = data_dir
        self._shown = [Path(path) for path in _SYSTEM]
        self.options: list[str] = []

    def program(self, path: Path) -> None:
        """Show a file or folder; for a program, also its interpreter and the folder it is installed in."""
        if not os.access(path, os.R_OK):
            return
        for link in _links(path):
            for folder in _surroundings(link):
                self._show(folder)
            if not self._is_shown(link):
                self._shown.append(link)
                self.options += ("--symlink", str(link.readlink()), str(link))
        real = path.resolve()
        for place in (real, *(() if path.is_symlink() else (path,))):
            for folder in (*_surroundings(place), *_prefix(place), place):
                self._show(folder)
        for interpreter in _interpreters(real, self._search_path):
            self.program(interpreter)
        for base in _base_of_virtual_environment(path):
            self.program(base)

    def _show(self, path: Path) -> None:
        if self._is_shown(path):
            return
        if self._data_dir.is_relative_to(path.resolve()) or path.resolve().is_relative_to(self._data_dir):
            raise UnsafeCommandError(f"{path} holds, or is part of, the bot's own data in {self._data_dir}")
        self._shown.append(path)
        self.options += ("--ro-bind", str(path), str(path))

    def _is_shown(self, path: Path) -> bool:
        return any(path.is_relative_to(shown) for shown in self._shown)


def _links(path: Path) -> Iterator[Path]:
    """Yield `path` and the links it leads to, as long as they are symbolic links."""
    for _ in range(40):  # what the kernel follows
        if not path.is_symlink():
            return
        yield path
        path = Path(os.path.normpath(path.parent / path.readlink()))


def _surroundings(file: Path) -> Iterator[Path]:
    """Yield what a program needs around its file: the parts of its virtual environment, or its node_modules.

    The folder of a virtual environment is not shown whole: people keep an `.env` there too.
    """
    for parent in file.parents:
        if (parent / "pyvenv.cfg").is_file():
            yield from (parent / name for name in _VIRTUAL_ENVIRONMENT_PARTS if (parent / name).exists())
    if "node_modules" in file.parts:
        yield Path(*file.parts[: file.parts.index("node_modules") + 1])


def _prefix(file: Path) -> Iterator[Path]:
    """Yield the folders of an interpreter. The prefix itself may be `~/.local`, with private files."""
    if file.parent.name == "bin" and file.name.startswith(("python", "node")):
        folders = (file.parent.parent / name for name in ("bin", "include", "lib"))
        yield from (folder for folder in folders if folder.is_dir())


def _base_of_virtual_environment(program: Path) -> Iterator[Path]:
    """Yield the interpreter that a virtual environment was made from: https://docs.python.org/3/library/site.html"""
    for parent in program.parents:
        if (parent / "pyvenv.cfg").is_file() and (parent / "bin" / "python").is_symlink():
            python = (parent / "bin" / "python").resolve()
            if python.is_file() and not python.is_relative_to(parent):
                yield python


def _interpreters(script: Path, search_path: str) -> Iterator[Path]:
    """Yield the program that the first line of a script names, by path or through env(1)."""
    if not script.is_file():
        return
    with script.open("rb") as file:
        first = file.read(_SHEBANG_BYTES).split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return
    words = os.fsdecode(first[2:]).split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    found = shutil.which(words[0], path=search_path) if words else None
    if found is not None:
        yield Path(found)
