#!/usr/bin/python3
"""uncovered.py TREE PERCENT: print the coverage of each file below TREE, as counted by gcov; fail below PERCENT."""

import collections
import glob
import json
import os
import subprocess
import sys


def read(tree):
    """Returns how often each line of each file of src ran, in whatever object."""
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    # An object that no process has run has a .gcno alone.
    for notes in glob.glob(f"{tree}/src/**/*.gcno", recursive=True):
        out = subprocess.run(["gcov", "--json-format", "--stdout", "--object-file", notes, notes],
                             cwd=tree, check=True, capture_output=True).stdout  # fmt: skip
        for line in out.splitlines():
            for file in json.loads(line)["files"]:
                if file["file"].startswith("src/"):
                    for place in file["lines"]:
                        counts[file["file"]][place["line_number"]] += place["count"]
    return counts


def ranges(lines, known):
    """Joins lines between which no other line counts: 3-5 9."""
    parts = []
    for line in lines:
        if parts and not any(parts[-1][1] < other < line for other in known):
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main(tree, least):
    counts = read(tree)
    total = ran = 0
    for file in sorted(counts):
        lines = counts[file]
        missed = sorted(line for line, count in lines.items() if count == 0)
        total += len(lines)
        ran += len(lines) - len(missed)
        print(f"{100 * (len(lines) - len(missed)) / len(lines):5.1f} %  {file}" + (f": {ranges(missed, lines)}" if missed else ""))
    if not total:
        sys.exit("nothing was counted")
    print(f"{100 * ran / total:.2f} % of {total} lines; {os.path.basename(sys.argv[0])}: {least} % wanted")
    sys.exit(0 if 100 * ran >= float(least) * total else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
