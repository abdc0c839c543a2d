"""Writes the licences of all crates that the program contains, from `cargo metadata` on standard input.

A text that several crates share is written once. A crate without a licence file is listed with the terms of its manifest.
"""

import json
import pathlib
import re
import sys

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)


def linked_packages(metadata):
    """Returns the packages that the program is built from, without tools of the build and of tests."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, waiting = set(), [root]
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    packages = [package for package in metadata["packages"] if package["id"] in found]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def licence_texts(package):
    """Returns the texts of the licence files beside the manifest."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name))
    return [path.read_text(encoding="utf-8", errors="replace").strip() for path in files]


def main():
    owners, without = {}, []
    packages = linked_packages(json.load(sys.stdin))
    print(f"setpoint contains {len(packages)} crates of others. Their licences:\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or 'see its file'}")
        texts = licence_texts(package)
        if not texts:
            without.append(name)
        for text in texts:
            owners.setdefault(text, []).append(name)
    if without:
        print(f"\nWithout a file of their own: {', '.join(without)}.")
    for text, names in owners.items():
        print(f"\n{'-' * 80}\n{', '.join(names)}\n\n{text}")


if __name__ == "__main__":
    main()
