"""The settings that a user can choose, their ranges, the paper's values, and how those of a run are found."""
from dataclasses import asdict, dataclass
from pathlib import Path

from core.files import COUNT, FLAG, InputError, Rule, check_values, read_if_there

SMALL = 256                       # the width below which a model gains nothing from more threads, but from more rows
WINDOW = 8192                     # s, the paper's window for construction and search (section 4)
PASS = 512                        # the most tokens of the top level that are read together, to save memory
CANDIDATES = 10                   # candidates that a step of a trace lists, best first
RESERVE = 5                       # a top level too large for the window leaves the tokens of this many chunks free
WHOLE_DOCUMENT = 100_000          # the window of the row that reads the whole document at once (section 4.1)

# t_p is Appendix E's. The paper gives no length limit for an answer; these are LongBench's.
PAPER = {
    "NarrativeQA": {"confidence": 0.5, "answer_tokens": 128},
    "Qasper": {"confidence": 0.98, "answer_tokens": 128},
    "HotpotQA": {"confidence": 0.5, "answer_tokens": 32},
    "MuSiQue": {"confidence": 0.55, "answer_tokens": 32},
}

# The range of each setting.
RULES = {
    **dict.fromkeys(("chunk", "window", "patience", "answer_tokens"), COUNT),
    **dict.fromkeys(("tree", "attention", "similarity", "question_again", "instructions"), FLAG),
    **dict.fromkeys(("fixed_nodes", "batch"),
                    Rule((int, type(None)), COUNT.words, lambda n: n is None or COUNT.holds(n))),
    "confidence": Rule((int, float), "a number of at least 0 and below 1", lambda x: 0 <= x < 1),
    "summary_share": Rule((int, float), "a number above 0 and below 1 (without room for a summary, no level is built)",
                          lambda x: 0 < x < 1),
}


STAGE_2 = "confidence", "patience", "attention", "similarity", "fixed_nodes", "answer_tokens", "question_again"


@dataclass(frozen=True)
class Settings:
    """What a run may choose. The defaults are the paper's for Llama-3.1-8B, where it gives one.

    Raises InputError if a value is out of range.
    """
    # stage 1
    chunk: int = 300              # tokens of a level-1 node (section 3.1)
    window: int = WINDOW          # s
    summary_share: float = 0.25   # share of the window kept for the summary (the paper does not say how much)
    tree: bool = False            # "w/o IP-based graph" (section 4.2): one summary node for each window

    # stage 2
    confidence: float = 0.5       # t_p
    patience: int = 1             # t_n
    attention: bool = True        # False: "w/o attention-guided retrieval", the final score is c
    similarity: bool = True       # False: "w/o embedding similarity", the final score is z
    fixed_nodes: int | None = None   # "w/o dynamic progress control": read this many nodes, without checks
    answer_tokens: int = 128      # length limit of an answer
    question_again: bool = False  # the second turn says the question once more, which Table A2's does not

    # not part of the method: what runs at all; memory and the last bits of rounding
    instructions: bool = True     # the model follows instructions; False: methods that ask in words are not run
    batch: int | None = None      # rows that run together (None: core.together.batch_rows and search_rows)

    def __post_init__(self):
        check_values(vars(self), RULES)
        if not (self.attention or self.similarity):
            raise InputError("attention and similarity cannot both be off: nothing would choose the next node")

    @property
    def summary_tokens(self) -> int:
        """The most tokens of a summary."""
        return int(self.window * self.summary_share)

    @property
    def fingerprint(self) -> dict:
        """All that a result may depend on, for core.code."""
        return self.answer_settings()

    def again(self, question: str) -> str:
        """The second turn repeats the question or nothing."""
        return question if self.question_again else ""

    def answer_settings(self) -> dict:
        """The settings that may change an answer: all but `instructions` and `batch`."""
        return {name: value for name, value in asdict(self).items() if name not in ("instructions", "batch")}

    def construction_settings(self) -> dict:
        """The settings that may change a graph. What is not named as stage 2 counts as stage 1."""
        return {name: value for name, value in self.answer_settings().items() if name not in STAGE_2}


def resolve(folder: Path, max_length: int, paper: dict | None = None, options: dict | None = None,
            run: dict | None = None) -> Settings:
    """The settings of a run. Each source overrides those before it; a value of None leaves the setting open.

        1. the defaults of Settings
        2. `folder`/pecan.json, if the checkpoint has one (the embedded model is small and brings its own)
        3. `paper`: the paper's values for the data set (PAPER) or the row (WHOLE_DOCUMENT)
        4. `options`: the command line
        5. `run`: settings that define the run, such as the ablation of a table's row

    The paper's windows (1 and 3) are reduced to `max_length`, the tokens that the models were made for. No other window
    is changed.

    Raises InputError for an unknown name in pecan.json, a value out of range, or a window above `max_length`.
    """
    path = folder / "pecan.json"
    checkpoint = read_if_there(path)
    unknown = checkpoint.keys() - RULES
    if unknown:
        raise InputError(f"{path}: unknown setting {sorted(unknown)[0]}; settings are {', '.join(RULES)}")
    check_values(checkpoint, {name: RULES[name] for name in checkpoint}, f"{path}: ")

    paper = dict(paper or {})
    if "window" in paper:
        paper["window"] = min(paper["window"], max_length)
    values = {"window": min(WINDOW, max_length)}
    for source in (checkpoint, paper, options, run):
        values |= {name: value for name, value in (source or {}).items() if value is not None}
    settings = Settings(**values)

    if settings.window > max_length:
        raise InputError(f"window {settings.window} is too large: the model was made for {max_length} tokens")
    return settings
