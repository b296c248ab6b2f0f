"""What was asked of the speed on one host, what was reached, and what bare copies reach in the same run.

targets.py FILE…: files of `tessera bench --json`. Prints a table in Markdown; scripts/bench puts it into bench/results.md.
"""

import json
import math
import sys

KIB, MIB = 1 << 10, 1 << 20
MPIS = ("openmpi", "mpich")
SUMS_AND_EXCHANGES = ("reduce_scatter", "all_reduce", "all_to_all")


def asked_of_gathers(case, memory, output):
    """Yields whom a gather is compared with, and how many times faster than that it is to be."""
    size, heap = case["size_bytes"], memory == "heap"
    if output == "fresh":
        yield ("gloo",), 3
        return
    yield ("gloo",), 500 if size <= KIB else 20
    if case["skew"] == "one":
        if heap:
            yield MPIS, 2.5
    elif size <= KIB:
        yield MPIS, 2
    elif size >= 32 * MIB:
        yield MPIS, 1.8 if heap else 1.1
    elif size >= MIB:
        yield MPIS, 1.5 if heap else 1


def asked(run, case, memory, output):
    if run["rewrite"]:
        return
    if memory == "heap" and output == "recycled":
        yield ("memcpy",), 1 / 1.2
    if run["ranks"] > 2:
        yield MPIS, 1
    elif run["op"] == "all_gather":
        yield from asked_of_gathers(case, memory, output)
    elif run["op"] in SUMS_AND_EXCHANGES:
        yield MPIS, 1.5 if case["size_bytes"] >= MIB else 1


def size_text(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def shown(ratio):
    """Rounded down, so that what is not met does not read as if it were."""
    digits = 0 if ratio >= 100 else 1 if ratio >= 10 else 2
    return f"{math.floor(ratio * 10**digits) / 10**digits:.{digits}f}"


def verdict(reached, target, bare):
    if reached >= target:
        return "met"
    return "**no**, nor do bare copies" if bare is not None and bare < target else "**no**"


def rows(run):
    for case in run["cases"]:
        best = {r["contender"]: r["best_us"] for r in case["results"] if r["contender"] != "tessera"}
        for ours in (r for r in case["results"] if r["contender"] == "tessera"):
            for others, target in asked(run, case, ours["memory"], ours["output"]):
                here = [name for name in others if name in best]
                if not here:
                    continue
                other = min(here, key=best.get)
                reached = best[other] / ours["best_us"]
                copies = "memcpy-fresh" if ours["output"] == "fresh" else "memcpy"
                bare = best[other] / best[copies] if copies in best and other != "memcpy" else None
                what = run["op"] + (", one has all" if case["skew"] == "one" else "")
                what += f", dim {case['dim']}" if case["dim"] else ""
                yield [
                    what,
                    str(run["ranks"]),
                    size_text(case["size_bytes"]),
                    ours["memory"] + (", fresh results" if ours["output"] == "fresh" else ""),
                    "bare copies" if other == "memcpy" else other,
                    f"{target:.3g}",
                    shown(reached),
                    "" if bare is None else shown(bare),
                    verdict(reached, target, bare),
                ]


def main(files):
    head = ["operation", "ranks", "size", "input in", "beside", "asked", "reached", "bare copies reach", ""]
    table = []
    for name in files:
        with open(name, encoding="utf-8") as file:
            table += [row for row in rows(json.load(file)) if row not in table]
    met = sum(row[-1] == "met" for row in table)
    print(f"Times as fast as the better of those beside it; {met} of {len(table)} are met.\n")
    for row in [head, ["---"] * len(head), *table]:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
