"""Every number and switch of the method, with the paper's values, and how they are resolved."""
from dataclasses import dataclass

from llama import Llama
from support.files import InputError, read_json


@dataclass(frozen=True)
class Settings:
    """Every number and switch of the method; the defaults are the paper's for Llama-3.1-8B, where it gives one."""
    # stage 1
    chunk: int = 300              # tokens of a level-1 node (section 3.1)
    window: int = 8192            # s, for construction and search (section 4)
    summary_share: float = 0.25   # of the window, kept for the summary (the paper does not say how much)
    tree: bool = False            # "w/o IP-based graph" (section 4.2): one summary node for each window
    # stage 2
    confidence: float = 0.5       # t_p; .5 NarrativeQA, .98 Qasper, .5 HotpotQA, .55 MuSiQue (Appendix E); GARLIC: .5
    patience: int = 1             # t_n
    attention: bool = True        # False: "w/o attention-guided retrieval", the final score is c
    similarity: bool = True       # False: "w/o embedding similarity", the final score is z
    fixed_nodes: int | None = None   # "w/o dynamic progress control": that many nodes are read, unchecked
    answer_tokens: int = 128      # length limit of an answer (the paper does not say; LongBench's for single documents)
    batch: int = 8                # windows of a level that run together: changes memory, rounding and padding FLOPs

    def __post_init__(self):
        for name in ("chunk", "window", "patience", "answer_tokens", "batch", "fixed_nodes"):
            value = getattr(self, name)
            if (type(value) is not int or value < 1) and not (name == "fixed_nodes" and value is None):
                raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")
        for name in ("confidence", "summary_share"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < 1:
                raise InputError(f"{name} is {value!r}; it must be a number of at least 0 and below 1")
        if not (self.attention or self.similarity):
            raise InputError("attention and similarity cannot both be off: nothing would choose the next node")

    def reader(self) -> dict:
        """The settings of all that reads in a window, PECAN or not; without `batch`, which changes no answer."""
        return {name: getattr(self, name) for name in ("chunk", "window", "summary_share", "answer_tokens")}

    def construction(self) -> dict:
        """The settings that change a graph."""
        return {name: getattr(self, name) for name in ("chunk", "window", "summary_share", "tree")}


def settings_for(model: Llama, builder: Llama | None = None, **chosen) -> Settings:
    """The defaults, overridden by a `pecan.json` in the checkpoint folder (the embedded model is small and brings one),
    overridden by what was chosen (None: not chosen). The window is no larger than the models were made for."""
    own = model.folder / "pecan.json"
    values = read_json(own) if own.exists() else {}
    unknown = set(values) - set(Settings.__dataclass_fields__)
    if unknown:
        raise InputError(f"{own}: unknown setting {sorted(unknown)[0]}")
    longest = min(m.config.max_length for m in (model, builder or model))
    values = {"window": min(Settings.window, longest)} | values
    settings = Settings(**values | {name: value for name, value in chosen.items() if value is not None})
    if settings.window > longest:
        raise InputError(f"window {settings.window} is too large: the model was made for {longest} tokens")
    return settings
