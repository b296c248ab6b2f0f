"""What was asked of the speed, what was reached, and on one host what bare copies reach in the same run.

targets.py FILE…: files of `tessera bench --json`. Prints tables in Markdown; scripts/bench puts them into bench/results.md,
and those of what goes between hosts (`--transport mpi` or `mpich`) into bench/results-mpi.md.
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
    if memory == "heap" and output == "recycled":
        by_hand = run["op"] == "redistribute" and run["rewrite"]  # then the same exchange, written by hand
        yield ("memcpy",), 1 / 1.1 if by_hand else 1 / 1.2
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
                    ours["memory"]
                    + (", just written" if run["rewrite"] else "")
                    + (", fresh results" if ours["output"] == "fresh" else ""),
                    "bare copies" if other == "memcpy" else other,
                    f"{target:.3g}",
                    shown(reached),
                    "" if bare is None else shown(bare),
                    verdict(reached, target, bare),
                ]


def most_us(case, output, best):
    """Between hosts: how many µs a gather may take, and why; of those that are beside it the better one counts."""
    raw = raw_us(case)
    whole = min((best[name] for name in MPIS if name in best), default=None)
    if case["dim"] == 1:  # theirs puts the rows side by side afterwards
        if output == "trusted" or whole is None:
            yield raw / 1.5, "MPI_Allgatherv and a transposition, 1.5 times as fast"
        else:
            yield whole / 1.5, "the sizes, MPI_Allgatherv and a transposition, 1.5 times as fast"
    elif case["skew"] == "one":
        if whole is not None:
            yield whole, "the sizes and MPI_Allgatherv"
    elif output == "trusted":
        yield raw * 1.05, "MPI_Allgatherv × 1.05"
    elif case["size_bytes"] >= MIB:
        yield raw * 1.05, "MPI_Allgatherv × 1.05"
    elif whole is not None:
        yield whole + 1, "the sizes and MPI_Allgatherv + 1 µs"


def verdict_between_hosts(reached, most, limit):
    if reached <= most:
        return "met"
    return f"**no**, {shown(most / reached)}" + (", nor does that" if limit is not None and limit > most else "")


def raw_us(case):
    """What MPI_Allgatherv alone takes; along an inner dimension with the transposition. None: it was not run."""
    return min((r["best_us"] for r in case["results"] if r["contender"].endswith("-raw")), default=None)


def least_us(case):
    """What a function with a library's arguments and result takes that only calls MPI_Allgatherv. None: it was not run."""
    return min((r["best_us"] for r in case["results"] if r["contender"].endswith("-least")), default=None)


def rows_between_hosts(run):
    # Along an inner dimension the same bytes along the first show what is spent before anything is put in place: by the faster.
    alone = {
        (case["size_bytes"], case["skew"]): min(r["best_us"] for r in case["results"])
        for case in run["cases"]
        if case["dim"] == 0
    }
    for case in run["cases"]:
        best = {r["contender"]: r["best_us"] for r in case["results"] if r["contender"] != "tessera"}
        if raw_us(case) is None or (case["dim"] == 0 and case["skew"] == "ragged"):
            continue
        for ours in (r for r in case["results"] if r["contender"] == "tessera"):
            trusted = least_us(case) if ours["output"] == "trusted" else None
            limit = alone.get((case["size_bytes"], case["skew"])) if case["dim"] else trusted
            for most, why in most_us(case, ours["output"], best):
                reached = ours["best_us"]
                yield [
                    run["transport"],
                    str(run["ranks"]),
                    size_text(case["size_bytes"]),
                    {"even": "", "one": "one has all", "ragged": "ragged"}[case["skew"]]
                    + (f" dim {case['dim']}" if case["dim"] else ""),
                    "trusted" if ours["output"] == "trusted" else "checked",
                    ours["memory"],
                    why,
                    f"{most:.3g}",
                    f"{reached:.3g}",
                    "" if limit is None else f"{limit:.3g}",
                    verdict_between_hosts(reached, most, limit),
                ]


def print_table(head, table):
    for row in [head, ["---"] * len(head), *table]:
        print("| " + " | ".join(row) + " |")


def main(files):
    here, between = [], []
    for name in files:
        with open(name, encoding="utf-8") as file:
            run = json.load(file)
        rows_of, table = (rows_between_hosts, between) if run["transport"] in MPIS else (rows, here)
        table += [row for row in rows_of(run) if row not in table]
    met = sum(row[-1] == "met" for row in here + between)
    if here:
        print(f"Times as fast as the better of those beside it; {met} of {len(here)} are met.\n")
        print_table(["operation", "ranks", "size", "input in", "beside", "asked", "reached", "bare copies reach", ""], here)
    if between:
        print(f"An all_gather in µs, the best times; {met} of {len(between)} are met.\n")
        head = ["MPI", "ranks", "size", "cut", "agreement", "input in", "at most", "asked", "reached", "limit", ""]
        print_table(head, between)


if __name__ == "__main__":
    main(sys.argv[1:])
