"""Small bugs, put into the source one at a time: the test beside them must fail for each.

    python tests/mutations.py           all bugs
    python tests/mutations.py NAME ..   those whose names contain NAME

mutations.diff has a paragraph for each test: a file of the source, the test, and the bugs that it catches, below their
names. All bugs together take about as long as all tests. So pytest leaves them out; .ci/run runs both.
"""
import multiprocessing
import os
import sys

from mutant import PRELOADED, ROOT, changes_in, run

MUTATIONS = {}                # name: (file, text, the text that replaces it, the test that catches it)
for paragraph in (ROOT / "tests" / "mutations.diff").read_text(encoding="utf-8").split("\n\n"):
    head, _, bugs = paragraph.partition("\n")
    file, test = head.split(", ")
    MUTATIONS |= {name: (file, *change, test) for name, change in changes_in(bugs).items()}


def argument_of(test: str) -> str:
    """The test as an argument of pytest; its file is in one of the rooms, or in a folder there."""
    file, name = test.split("::")
    path, = (ROOT / "tests").rglob(file)
    return f"{path.relative_to(ROOT)}::{name}"


def main(wanted: list[str]) -> int:
    """Run the bugs, as many at once as there are processors (at most 8), and print what became of each."""
    chosen = {name: bug for name, bug in MUTATIONS.items() if not wanted or any(word in name for word in wanted)}
    calls = [(name, change, [argument_of(test)]) for name, (*change, test) in chosen.items()]
    if not wanted:                                             # in a copy without any bug, nothing may fail
        calls.insert(0, ("no bug", None, sorted({test for _, _, (test,) in calls})))

    # Processes are forked from a server that loads the libraries once. Each runs one bug.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = 0
    with context.Pool(min(8, os.cpu_count()), maxtasksperchild=1) as pool:
        for name, outcome, said in pool.imap(run, calls):
            wrong += outcome != ("SURVIVES" if name == "no bug" else "caught")
            print(f"{name:48} {outcome} {said}", flush=True)
    print(f"{len(chosen)} bugs, {wrong} not caught")
    return 0 if chosen and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
