"""Runs the tests of LangGraph itself against Everstep's saver: `python -m tests.langgraph.own [memory sqlite ...]`.

The tests come from LangGraph's source archives on the package index, in the versions that are installed here, and are
unpacked into a folder that is deleted at the end. Nothing of them is part of this project. See `swap_savers` for how
its savers are put in the place of LangGraph's.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.tools import servers

PACKAGES = ("langgraph", "langgraph-prebuilt")
HELPERS = ("pytest-mock==3.17.0", "syrupy==6.1.1", "pycryptodome", "pytest-repeat")
"""What LangGraph's tests import, beside what this project's tests need."""
STORES = ("memory", "sqlite", "postgres", "redis")

_HERE = Path(__file__).parent
_SOURCE = _HERE.parents[2] / "src"


def main(stores: list[str]) -> int:
    """Run the tests on these stores; return 0 if all have passed."""
    unknown = sorted(set(stores) - set(STORES))
    if unknown:
        print(f"there is no store {', '.join(unknown)}; there are {', '.join(STORES)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="langgraph-tests-") as name:
        folder = Path(name)
        _pip("install", "--no-deps", "--target", str(folder / "helpers"), *HELPERS)
        failed: list[str] = []
        for package in PACKAGES:
            tests = _unpacked(package, folder)
            for store in stores:
                print(f"== the tests of {package} on {store}", flush=True)
                if _run(tests, folder / "helpers", store) != 0:
                    failed.append(f"{package} on {store}")
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def _unpacked(package: str, folder: Path) -> Path:
    """Return the folder in which the tests of a package are, from its source archive."""
    version = importlib.metadata.version(package)
    archives = folder / "archives"
    _pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(archives), f"{package}=={version}")
    (archive,) = archives.glob(f"{package.replace('-', '_')}-{version}.tar.gz")
    target = folder / package
    with tarfile.open(archive) as found:
        # The package itself stays behind: the installed one is tested with.
        members = [member for member in found.getmembers() if "/tests/" in member.name]
        found.extractall(target, members, filter="data")
    (unpacked,) = target.iterdir()
    return unpacked


def _run(tests: Path, helpers: Path, store: str) -> int:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [_SOURCE, _HERE, helpers, tests]))
    environment["EVERSTEP_LANGGRAPH_STORE"] = store
    if store == "postgres":
        environment["EVERSTEP_LANGGRAPH_URL"] = servers.postgres()
    elif store == "redis":
        environment["EVERSTEP_LANGGRAPH_URL"] = servers.redis()
    command = [sys.executable, "-m", "pytest", "-p", "swap_savers", "-p", "no:cacheprovider", "-n", "2"]
    # Their settings ask for plugins that are of no use here; their code warns of much.
    command += ["-o", "addopts=", "-W", "ignore", "-q", "--tb=short"]
    return subprocess.run(command, cwd=tests, env=environment, check=False).returncode


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(STORES)))
