"""What users write where there is no torch: as typed_uses.py."""

import numpy
import tessera


def rank_main(comm: tessera.Comm) -> int:
    rows, sizes = tessera.all_gather(numpy.ones((comm.rank, 2)))
    mean, _ = tessera.all_gather(rows, grad="mean")
    tessera.send(tessera.split(mean, 0, numpy.array(sizes)), 1)
    plan = tessera.plan(tessera.Layout("x=2", "S0"), "R", [4])
    try:
        tessera.redistribute(tessera.all_reduce(rows), plan)
    except tessera.TimeoutError as error:
        print(error)
    return len(sizes)


total: int = sum(tessera.run(2, rank_main))
wrong: str = tessera.plan(tessera.Layout("x=2", "S0"), "R", [4])  # type: ignore[assignment]
