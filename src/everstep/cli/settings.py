"""Which store the command works on, and where that was said: an option, the environment, a file of the project or user.

A file is `everstep.toml`, or `pyproject.toml` with a table `[tool.everstep]`, in this folder or the nearest one above:

    store = "sqlite:///agent.db"            # a relative path begins at the folder of the file
    retention = { policy = "keep_last_n", param = 100 }
    options = { key_prefix = "agents:" }    # what `everstep.open` takes besides the URL

    [profiles.production]                   # everstep --profile production ...
    store = "postgresql://..."

The user's own file, `~/.config/everstep/config.toml`, has the same entries and is asked last.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from everstep.errors import InvalidInput
from everstep.opening.addresses import place_of

STORE_VARIABLE = "EVERSTEP_STORE"
PROFILE_VARIABLE = "EVERSTEP_PROFILE"
_ENTRIES = ("store", "retention", "options", "profiles")


class File(NamedTuple):
    """A file with settings, and the table in it that is ours."""

    path: Path
    table: Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """The store to work on, and how."""

    store: str
    source: str
    """Who named it, for people: "--store", "EVERSTEP_STORE", the path of a file, or "default"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    retention: Mapping[str, Any] = field(default_factory=dict)


def find_settings(store: str | None, profile: str | None) -> Settings:
    """Return the store to work on: the option, else the environment, else the nearest file, else the user's own."""
    profile = profile or (os.environ.get(PROFILE_VARIABLE) if store is None else None)
    files = list(find_files(Path.cwd()))
    if profile is not None:
        if store is not None:
            raise InvalidInput("--store and --profile both name a store; give one of them")
        return _from_profile(profile, files)
    near = _settings_of(files[0]) if files else None
    if store is not None:
        return Settings(store, "--store", *_how(near))
    if os.environ.get(STORE_VARIABLE):
        return Settings(os.environ[STORE_VARIABLE], STORE_VARIABLE, *_how(near))
    for file in files:
        found = _settings_of(file)
        if found.store:
            return found
    # Late, since it is needed only if nothing else names a store.
    from everstep.factory import DEFAULT_URL

    return Settings(DEFAULT_URL, "default", *_how(near))


def find_files(folder: Path) -> Iterator[File]:
    """Yield the files that hold settings, the nearest first, the user's own last."""
    for place in (folder, *folder.parents):
        own = _table(place / "everstep.toml")
        if own is not None:
            yield File(place / "everstep.toml", own)
            break
        project = _table(place / "pyproject.toml")
        ours = (project or {}).get("tool", {}).get("everstep")
        if isinstance(ours, Mapping):
            yield File(place / "pyproject.toml", ours)
            break
    user = user_file()
    table = _table(user)
    if table is not None:
        yield File(user, table)


def user_file() -> Path:
    """Return where the user's own settings are, if there are any."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "everstep" / "config.toml"


def profiles_of(files: list[File]) -> dict[str, File]:
    """Return the names of all profiles, and the file that says what each is."""
    found: dict[str, File] = {}
    for file in files:
        named = file.table.get("profiles")
        for name in named if isinstance(named, Mapping) else ():
            found.setdefault(str(name), file)
    return found


def _from_profile(profile: str, files: list[File]) -> Settings:
    known = profiles_of(files)
    file = known.get(profile)
    if file is None:
        listed = ", ".join(sorted(known)) or "none"
        raise InvalidInput(f"there is no profile {profile!r} in the config files; known are: {listed}")
    found = _settings_of(File(file.path, file.table["profiles"][profile]))
    if not found.store:
        raise InvalidInput(f"the profile {profile!r} in {file.path} names no store")
    return Settings(found.store, f"profile {profile} of {file.path}", found.options, found.retention)


def _settings_of(file: File) -> Settings:
    unknown = sorted(map(str, file.table.keys() - set(_ENTRIES)))
    if unknown:
        raise InvalidInput(f"{file.path}: there is no entry {unknown[0]!r}; the entries are {', '.join(_ENTRIES)}")
    store = file.table.get("store", "")
    options = file.table.get("options", {})
    retention = file.table.get("retention", {})
    if not isinstance(store, str):
        raise InvalidInput(f"{file.path}: store is the URL of a store, in quotes")
    if not isinstance(options, Mapping) or not isinstance(retention, Mapping):
        raise InvalidInput(f"{file.path}: options and retention are tables")
    return Settings(_from_folder(store, file.path.parent), str(file.path), options, retention)


def _how(near: Settings | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the retention of the nearest file; its options belong to its own store and not to another one."""
    return {}, near.retention if near is not None else {}


def _from_folder(store: str, folder: Path) -> str:
    """Return the address with a relative path of a file made absolute."""
    if not store:
        return ""
    kind, where = place_of(store)
    return str(folder / where) if kind == "sqlite" else store


def _table(path: Path) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        # It is not there, or not ours to read.
        return None
    except tomllib.TOMLDecodeError as exc:
        if path.name == "pyproject.toml":
            # Other programs say what is wrong with it.
            return None
        raise InvalidInput(f"{path} cannot be read: {exc}") from exc
