"""The replies of an interrupted construction, on disk until the graph or tree is complete."""
import contextlib
import hashlib
import json
from pathlib import Path

from core.files import append_line, complete_lines, lock, reading
from support.graph import check_place


def place_of(path: str | Path) -> Path:
    """The file of the replies that are kept for the graph at `path`."""
    return Path(f"{path}.summaries")


@contextlib.contextmanager
def kept(path: str | Path | None, construction: str, work):
    """Yield `work` with a memory on disk. Without a path, yield `work` itself.

    work(model, *arguments) is pecan.summarise or another way to ask the model. Each call adds a line to PATH.summaries:
    its result, its FLOPs, and a hash of its arguments and of `construction`, which names document, model and settings.
    A call whose hash is in the file does not run again, but its FLOPs count. A lost or torn line is computed again.

    Only one process may build at PATH, so the file is locked. It is removed when the block ends without an error.
    InputError if another process builds there, OutputError if PATH cannot be written.
    """
    if path is None:
        yield work
        return

    check_place(path)
    file = place_of(path)
    remedy = "; remove the file, and the graph is built from the start"
    found = {}                                              # hash -> (the call's result, its FLOPs)

    def kept_or_new(model, *arguments):
        of = hashlib.sha256(json.dumps([construction, *arguments]).encode()).hexdigest()
        if of in found:
            given, flops = found[of]
            model.flops += flops
            return given

        start = model.spent()
        given = work(model, *arguments)
        append_line(file, json.dumps([of, given, model.spent(start)[0]], ensure_ascii=False, allow_nan=False))
        return given

    with lock(file):
        with reading(file, "not the summaries of an interrupted construction", remedy):
            for line in complete_lines(file):
                of, given, flops = json.loads(line)
                found[of] = given, flops

        complete = False
        try:
            yield kept_or_new
            complete = True
        finally:
            if complete or not file.stat().st_size:
                file.unlink()
