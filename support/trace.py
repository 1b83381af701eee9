"""The trace of a search and the dump of every tensor: what a run writes about itself when it is asked to.

The method calls `note` where a number comes into being. Nobody hears it unless a Recorder runs the method. Both files
are described in view/README.md.
"""
import hashlib
import json
import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path

import torch

from core.files import InputError, OutputError, write_file, write_tensors
from support.heads import head_weights

FORMAT = "pecan trace 1"
CANDIDATES = 10                   # of a choice, best first, that a trace holds

listener = ContextVar("listener", default=None)


def note(what: str, **values):
    """Hand values to whoever listens; without a listener nothing happens."""
    if listener.get() is not None:
        listener.get()(what, values)


@contextmanager
def listening(to):
    """Every note within the block is handed to the function `to`."""
    token = listener.set(to)
    try:
        yield
    finally:
        listener.reset(token)


class Recorder:
    """Runs a method (data.Method) and writes FILE.jsonl, FILE.safetensors or nothing. Answers do not change.

    Both files are complete after each answer, and replaced at once. Raises InputError if a name has another ending or
    if a dump is wanted of a graph that exists already, OutputError if a folder cannot be written.
    """

    def __init__(self, method, trace: str | None = None, dump: str | None = None):
        self.method = method
        self.trace = trace
        self.dump = dump
        for path, ending in ((trace, ".jsonl"), (dump, ".safetensors")):
            if path and Path(path).suffix != ending:
                raise InputError(f"{path}: the name of this file must end with {ending}")
            if path and not os.access(Path(path).parent, os.W_OK):
                raise OutputError(f"{path}: cannot be written; choose another folder")
        self.lines = []                                      # of the trace
        self.tensors = {}                                    # of the dump: name -> tensor
        self.meanings = {}                                   # of the dump: name -> what it is
        self.queries = 0

    def file_name(self, document):
        return self.method.file_name(document)

    def prepare(self, document, path=None, progress=False):
        """Prepare a document, and keep every tensor of the construction if a dump is wanted."""
        for existing in (path, f"{path}.windows"):
            if self.dump and path is not None and Path(existing).exists():
                raise InputError(f"{existing}: exists, and a dump needs the whole construction; name a new file with "
                                 "--graph")
        if self.trace and path is None:
            raise InputError("a trace needs the file of the graph; give one to prepare")

        notes = []
        with listening(lambda what, values: notes.append((what, values)) if self.dump else None):
            prepared = self.method.prepare(document, path, progress)
        self.graph = path
        if self.dump:
            self.keep_construction(notes, prepared.graph)
        return prepared

    def answer(self, prepared, question, progress=False):
        """Answer a question, and write down how."""
        notes = []

        def copy(what, values):
            notes.append((what, {name: value.clone() if torch.is_tensor(value) else value
                                 for name, value in values.items()}))

        with listening(copy if self.trace or self.dump else None):
            answer = self.method.answer(prepared, question, progress)
        if self.trace:
            self.lines += self.trace_of(question, notes, answer)
            lines = [json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in self.lines]
            write_file(self.trace, "".join(lines))
        if self.dump:
            self.keep_search(notes, answer)
            self.write_dump()
        self.queries += 1
        return answer

    # --- trace ------------------------------------------------------------------------------------------------------

    def trace_of(self, question: str, notes: list, answer) -> list[dict]:
        """The header, a line for each step, and the answer."""
        query, = (values for what, values in notes if what == "query")
        visits = [values for what, values in notes if what == "visit"]
        choices = iter([values for what, values in notes if what == "choice"])

        content = Path(self.graph).read_bytes()
        lines = [{"format": FORMAT,
                  "graph": {"file": os.path.relpath(self.graph, Path(self.trace).parent),
                            "sha256": hashlib.sha256(content).hexdigest()},
                  "model": self.method.model.fingerprint, "encoder": self.method.encoder.fingerprint,
                  "settings": asdict(self.method.settings), "question": question, "room": query["room"],
                  "nodes": [{"c": c, "tokens": tokens} for c, tokens in zip(query["c"].tolist(), query["tokens"])]}]

        relevance = []
        for number, (step, visit) in enumerate(zip(answer.trace, visits, strict=True), 1):
            choice = None if step.score is None else next(choices)
            relevance.append({"node": step.node, "attention": visit["attention"], "r": step.r})
            lines.append({"step": number, "node": step.node, "level": step.level, "position": step.position,
                          "candidates": None if choice is None else candidates_of(choice),
                          "relevance": list(relevance), "p_yes": step.p_yes, "verdict": step.verdict,
                          "tokens": step.tokens, "flops": step.flops, "cached": visit["cached"]})

        return [*lines, {"answer": answer.text, "end": answer.end, "nodes": answer.nodes, "tokens": answer.tokens,
                         "flops": answer.flops}]

    # --- dump -------------------------------------------------------------------------------------------------------

    def keep(self, name: str, value, meaning: str):
        """Add a tensor to the dump."""
        self.tensors[name] = torch.as_tensor(value).cpu().clone(memory_format=torch.contiguous_format)
        self.meanings[name] = {"is": meaning, "shape": list(self.tensors[name].shape),
                               "dtype": str(self.tensors[name].dtype).removeprefix("torch.")}

    def keep_construction(self, notes: list, graph):
        """What each head counts, a(x, j) of each window, the tokens and e' of each information point, and E."""
        settings = self.method.settings
        for name, heads, model in (("edges", settings.edge_heads, self.method.builder),
                                   ("relevance", settings.relevance_heads, self.method.model)):
            self.keep(f"heads.{name}", head_weights(heads, model.config.layers, model.config.heads), "what each head "
                      "counts [L, H]; by the paper 1 / (L H), the mean over all heads of all layers (3.1)")

        window = -1
        point = 0
        for what, values in notes:
            if what == "window":
                window += 1
                width = len(values["nodes"])
                at = f"window.{window}."
                self.keep(at + "nodes", values["nodes"], "ids of the N nodes that were summarised together")
                self.keep(at + "reply", values["reply"], "token ids of the summary")
                if values["reply"]:
                    self.keep(at + "a", values["a"][:, :width], "a(x, j): attention of reply token x to node j, the "
                              "sum over heads by heads.edges, and the mean over the tokens of j [tokens, N] (3.1)")

            if what == "edges":
                at = f"point.{point}."
                point += 1
                self.keep(at + "window", window, "the window in whose reply this information point is a bullet")
                self.keep(at + "tokens", values["tokens"], "places of its tokens in the reply")
                self.keep(at + "e_prime", values["e_prime"][:width], "e'_ij: the mean of a(x, j) over its tokens [N]")

        self.keep("E.indices", graph.E.indices(), "rows i and columns j of the edges [2, edges]; the points are the "
                  "nodes from the first of level 2 on, in order (those of a level that was given up come last)")
        self.keep("E.values", graph.E.values(), "e_ij = e'_ij / sum_j' e'_ij' [edges] (3.1, normalisation)")
        self.keep("levels", [node.level for node in graph.nodes], "level of each node [|V|]; 1 is a chunk")

    def keep_search(self, notes: list, answer):
        """c, and for each step what was chosen from what."""
        at = f"query.{self.queries}."
        choices = 0
        for what, values in notes:
            if what == "query":
                self.keep(at + "c", values["c"], "cosine of the query and each node [|V|]")
                self.keep(at + "tokens", values["tokens"], "tokens of each node in the window, marker included [|V|]")

            if what == "choice":
                of_choice = f"{at}choice.{choices}."
                choices += 1
                self.keep(of_choice + "r", values["r"], "relevance of visited nodes, 0 elsewhere [|V|] (Appendix C)")
                self.keep(of_choice + "z", values["z"], "z = E^T r [|V|] (equation 1)")
                self.keep(of_choice + "scores", values["scores"], "final score [|V|]: z and c, each over its sum")
                self.keep(of_choice + "order", values["order"], "nodes outside S that fit the window, best first")

        self.keep(at + "visited", answer.nodes, "S, in the order of reading")
        checks = [-1.0 if step.p_yes is None else step.p_yes for step in answer.trace]
        self.keep(at + "p_yes", torch.tensor(checks, dtype=torch.float64),
                  "p_yes after each node [|S|]; -1 without a check")

    def write_dump(self):
        """Write the tensors, and next to them a JSON file of what each of them is."""
        write_tensors(self.dump, self.tensors)
        write_file(Path(self.dump).with_suffix(".json"), json.dumps(self.meanings, indent=1, allow_nan=False) + "\n")


def candidates_of(choice: dict) -> list[dict]:
    """The best candidates of a choice, with z and final score."""
    z = choice["z"].tolist()
    scores = choice["scores"].tolist()
    return [{"node": i, "z": z[i], "score": scores[i]} for i in choice["order"][:CANDIDATES]]
