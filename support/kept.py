"""What keeps an interrupted construction: the summaries made so far, on disk until the graph is complete."""
import contextlib
import hashlib
import json
from pathlib import Path

from core.files import append_line, complete_lines, lock, reading
from support.graph import check_place


def place_of(path: str | Path) -> Path:
    """The file of the summaries that are kept for the graph at `path`."""
    return Path(f"{path}.summaries")


@contextlib.contextmanager
def kept_summaries(path: str | Path, construction: str, summarise):
    """Within the block, pecan.summarise that looks on disk first and writes down what it has summarised.

    The file is PATH.summaries. A line holds the IPs of a batch of groups, what they cost, and a hash by which it is
    found again: of the groups' texts and of `construction`, which names document, model and settings. So a line that
    is lost or torn is summarised anew, and one that stands twice does no harm. The FLOPs of a kept batch count as the
    model's, as if it had run now. The file is locked, because only one process may build the graph at PATH, and
    removed when the block ends without an error. InputError if another process builds there, OutputError if PATH
    cannot be written.
    """
    check_place(path)
    file = place_of(path)
    remedy = "; remove the file, and the graph is built from the start"
    kept = {}

    def kept_or_new(model, batch, limit, tree=False):
        of = hashlib.sha256(json.dumps([construction, batch]).encode()).hexdigest()
        if of in kept:
            points, flops = kept[of]
            model.flops += flops
            return points

        start = model.spent()
        points = summarise(model, batch, limit, tree)
        append_line(file, json.dumps([of, points, model.spent(start)[0]], ensure_ascii=False, allow_nan=False))
        return points

    with lock(file):
        with reading(file, "not the summaries of an interrupted construction", remedy):
            for line in complete_lines(file):
                of, points, flops = json.loads(line)
                kept[of] = points, flops

        complete = False
        try:
            yield kept_or_new
            complete = True
        finally:
            if complete or not file.stat().st_size:
                file.unlink()
