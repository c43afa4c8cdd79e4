"""Make `src/everstep/web/static/vendor/ui.js`: what the page uses of other people's work, as one file.

    python tools/vendor.py

It needs npm, which gets the packages in exactly the versions below, and esbuild, which joins them. The file is kept in
the repository, so that neither users nor the tests need any of this; `VENDOR.json` beside it says what is in it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src/everstep/web/static/vendor"
PACKAGES = {"preact": "11.2.0", "@preact/signals": "2.11.4", "@preact/signals-core": "1.14.5", "htm": "3.1.1"}
"""What goes into the file, with what they need in turn."""
ESBUILD = "0.28.2"

ENTRY = """
export { h, render, Fragment } from "preact";
export { useEffect, useLayoutEffect, useRef, useState, useMemo, useCallback } from "preact/hooks";
export { signal, computed, effect, batch, useSignal, useComputed } from "@preact/signals";
export { html } from "htm/preact";
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-vendor-") as name:
        folder = Path(name)
        install(folder)
        text = bundle(folder)
        packages = [describe(folder, package) for package in PACKAGES]
        licences = [f"{package}\n\n{licence_text(folder, package)}" for package in PACKAGES]
    notice = "/*! " + "; ".join(f"{p['name']} {p['version']} ({p['licence']})" for p in packages) + " */\n"
    data = (notice + text).encode()
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "ui.js").write_bytes(data)
    about = {"file": "ui.js", "sha256": hashlib.sha256(data).hexdigest(), "made_by": f"esbuild {ESBUILD}"}
    (FOLDER / "VENDOR.json").write_text(json.dumps({**about, "packages": packages}, indent=2) + "\n")
    (FOLDER / "LICENCES.txt").write_text(("\n" + "-" * 80 + "\n\n").join(licences))
    print(f"ui.js: {len(data):,} bytes")


def install(folder: Path) -> None:
    (folder / "package.json").write_text(json.dumps({"private": True}))
    (folder / "entry.js").write_text(ENTRY)
    wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
    run(folder, "npm", "install", "--no-audit", "--no-fund", "--save-exact", f"esbuild@{ESBUILD}", *wanted)


def bundle(folder: Path) -> str:
    """Return the packages as one module. Comments with licences are left out: the notice says what it contains."""
    flags = ("--bundle", "--format=esm", "--minify", "--legal-comments=none", "--target=es2022")
    run(folder, "node_modules/.bin/esbuild", "entry.js", *flags, "--outfile=ui.js")
    return (folder / "ui.js").read_text()


def describe(folder: Path, package: str) -> dict[str, Any]:
    found = json.loads((folder / "node_modules" / package / "package.json").read_text())
    if found["version"] != PACKAGES[package]:
        raise SystemExit(f"{package} is {found['version']}, not {PACKAGES[package]}")
    return {"name": package, "version": found["version"], "licence": found["license"]}


def licence_text(folder: Path, package: str) -> str:
    """Return the terms of a package, which ask to be passed on with it; addresses in them are names, not links."""
    text = (folder / "node_modules" / package / "LICENSE").read_text()
    return text.replace("https://", "").replace("http://", "").strip() + "\n"


def run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
