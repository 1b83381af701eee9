"""What a Hugging Face checkpoint folder holds: config.json, the weights, the tokenizer and the chat template.

Only JSON, safetensors and sentencepiece files are read. Template text may name special tokens; document text never
may: a `<|eot_id|>` inside a document stays plain text.
"""
import datetime
import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jinja2.ext
import jinja2.sandbox
import tokenizers
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from data import InputError, one_line, read_json, write_file

# --- config and weights ---------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Config:
    """What the forward pass needs of a `config.json`."""
    vocab: int                                 # V
    width: int                                 # D
    hidden: int                                # width of the SwiGLU
    layers: int                                # L
    heads: int                                 # H
    kv_heads: int                              # KV
    head_width: int                            # K
    norm_eps: float
    max_length: int                            # positions the checkpoint was made for
    tied: bool                                 # the output matrix is the embedding
    rope_theta: float
    rope: dict | None                          # llama3 scaling: factor, low, high, original
    eos: tuple[int, ...]
    dtype: str                                 # of the stored weights


def read_config(folder: str | Path) -> Config:
    """Read config.json as transformers 4 wrote it (rope_theta, rope_scaling) or as 5 does (one rope_parameters).

    Raises InputError for a missing key, another architecture, a bias, or a rope_type other than default and llama3.
    """
    path = Path(folder) / "config.json"
    raw = read_json(path)
    architectures, kind = raw.get("architectures", ["LlamaForCausalLM"]), raw.get("model_type", "llama")
    if architectures != ["LlamaForCausalLM"] or kind != "llama":
        raise InputError(f"{path}: architecture {architectures or kind} is not LlamaForCausalLM")
    for key, wanted in {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}.items():
        if raw.get(key, wanted) != wanted:
            raise InputError(f"{path}: {key} is {raw[key]!r}; only {wanted!r} is implemented")

    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise InputError(f"{path}: RoPE's parameters are {rope!r}; an object with rope_type is wanted")
    rope = {"rope_theta": raw.get("rope_theta", 10000.0)} | rope
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InputError(f"{path}: rope_type {kind!r} is unknown; 'default' and 'llama3' are implemented")
    generation = Path(folder) / "generation_config.json"           # authoritative for where a reply ends
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    try:
        heads = raw["num_attention_heads"]
        scaling = None if kind == "default" else {
            "factor": rope["factor"], "low": rope["low_freq_factor"], "high": rope["high_freq_factor"],
            "original": rope.get("original_max_position_embeddings") or raw["max_position_embeddings"]}
        config = Config(
            vocab=raw["vocab_size"], width=raw["hidden_size"], hidden=raw["intermediate_size"],
            layers=raw["num_hidden_layers"], heads=heads, kv_heads=raw.get("num_key_value_heads") or heads,
            head_width=raw.get("head_dim") or raw["hidden_size"] // heads,
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            max_length=raw.get("max_position_embeddings", 2048), tied=raw.get("tie_word_embeddings", False),
            rope_theta=float(rope.get("rope_theta", 10000.0)), rope=scaling,
            eos=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
            dtype=str(raw.get("torch_dtype") or raw.get("dtype") or "bfloat16"))
    except KeyError as error:
        raise InputError(f"{path}: key {error} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{path}: a value is not what a Llama's is ({error})") from None
    numbers = {name: getattr(config, name) for name in ("vocab", "width", "hidden", "layers", "heads", "kv_heads",
                                                        "head_width", "max_length")}
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{path}: {name} is {value!r}, not a positive whole number")
    if not all(type(token) is int for token in config.eos):
        raise InputError(f"{folder}: eos_token_id is {eos!r}, not a token id or several")
    if config.heads % config.kv_heads:
        raise InputError(f"{path}: {config.heads} query heads do not share {config.kv_heads} key/value heads evenly")
    return config


def tensor_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint and its shape."""
    D, q, kv = c.width, c.heads * c.head_width, c.kv_heads * c.head_width
    of_layer = {"input_layernorm": (D,), "post_attention_layernorm": (D,),
                "self_attn.q_proj": (q, D), "self_attn.k_proj": (kv, D), "self_attn.v_proj": (kv, D),
                "self_attn.o_proj": (D, q), "mlp.gate_proj": (c.hidden, D), "mlp.up_proj": (c.hidden, D),
                "mlp.down_proj": (D, c.hidden)}
    shapes = {f"model.layers.{layer}.{name}.weight": shape
              for layer in range(c.layers) for name, shape in of_layer.items()}
    shapes |= {"model.embed_tokens.weight": (c.vocab, D), "model.norm.weight": (D,)}
    return shapes if c.tied else shapes | {"lm_head.weight": (c.vocab, D)}


def read_tensors(path: Path, device, dtype, shape_of) -> dict[str, torch.Tensor]:
    """The tensors of one safetensors file, read one at a time. shape_of(name) tells the shape a tensor must have,
    "skip" where it is not needed, or None where it does not belong there.

    Raises InputError naming the file and the tensor that is unknown or of another shape, or a file that is cut short.
    """
    read = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():
                wanted, found = shape_of(name), tuple(tensors.get_slice(name).get_shape())
                if wanted is None:
                    raise InputError(f"{path}: tensor {name} is not part of this architecture")
                if wanted not in ("skip", found):
                    raise InputError(f"{path}: {name} is {list(found)}, config.json says {list(wanted)}")
                if wanted != "skip":
                    read[name] = tensors.get_tensor(name).to(device, dtype)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from None
    return read


def read_weights(folder: str | Path, config: Config, device, dtype) -> dict[str, torch.Tensor]:
    """Read single or sharded safetensors; every tensor is consumed and every shape checked.

    Raises InputError as read_tensors does, and naming the first tensor that is missing.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict):
            raise InputError(f"{index}: has no weight_map")
        files = set(files.values())
    shapes, weights = tensor_shapes(config), {}

    def shape_of(name):
        if name.endswith("rotary_emb.inv_freq"):                 # a table that old checkpoints carry along; recomputed
            return "skip"
        if name == "lm_head.weight" and config.tied:             # some tied checkpoints store the matrix twice
            return shapes["model.embed_tokens.weight"]
        return shapes.get(name)
    for file in sorted(files):
        weights |= read_tensors(folder / file, device, dtype, shape_of)
    missing = [name for name in shapes if name not in weights]
    if missing:
        raise InputError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
    if config.tied and "lm_head.weight" in weights and not torch.equal(
            weights.pop("lm_head.weight"), weights["model.embed_tokens.weight"]):
        raise InputError(f"{folder}: config.json ties lm_head.weight to the embedding, but the stored one differs")
    return weights


def locate(model: str | Path) -> Path:
    """A checkpoint folder: `model` itself, or the snapshot of the hub repository `owner/name`, or of its revision
    `owner/name@revision` (JSON, safetensors, vocabularies)."""
    if Path(model).is_dir():
        return Path(model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", str(model)) or Path(model).parent.is_dir():
        raise InputError(f"{model}: no such folder, and not a hub repository of the form owner/name")
    from huggingface_hub import snapshot_download
    name, _, revision = str(model).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, ignore_patterns=["original/*"], allow_patterns=[
            "*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt"]))
    except Exception as error:                               # gated, unknown, offline: each is the user's to mend
        raise InputError(f"{model}: cannot be fetched from the hub ({one_line(error)}); "
                         "give a local folder, or log in with `hf auth login` if the repository is gated") from None


NOT_THE_MODEL = ("pecan.json", "training.safetensors")            # of the files a checkpoint folder may hold


def fingerprint(folder: Path) -> str:
    """sha256 over the config, tokenizer and weights files of a checkpoint folder."""
    digest = hashlib.sha256()
    for path in sorted([*folder.iterdir(), *(folder / "1_Pooling").glob("*")]):
        known = path.suffix in (".json", ".model", ".jinja", ".safetensors") or path.name == "vocab.txt"
        if known and path.name not in NOT_THE_MODEL:
            with open(path, "rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def choose_device(device: str = "auto", dtype: str = "auto",
                  stored: str = "bfloat16") -> tuple[torch.device, torch.dtype]:
    """"auto" takes cuda, then mps, then cpu; and on cuda the dtype the weights are stored in, float32 elsewhere."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype == "auto":
        dtype = stored if chosen.type == "cuda" and stored in names else "float32"
    if dtype not in names:
        raise InputError(f"dtype {dtype!r} is unknown; choose from {', '.join(names)}")
    return chosen, names[dtype]


def save_checkpoint(folder: str | Path, raw: dict, weights: dict[str, torch.Tensor]):
    """Write config.json and model.safetensors as read_config and read_weights (and Hugging Face) read them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "config.json", json.dumps(raw, indent=2) + "\n")
    partial = folder / "model.partial"
    save_file({n: w.detach().cpu().contiguous() for n, w in weights.items()}, partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")


# --- tokenizer and chat template ------------------------------------------------------------------------------------

SLOT = "\ue000"                              # a private-use character that marks where the content of a turn goes
TODAY = datetime.datetime(2024, 7, 26)       # the date every template prints: a prompt must not change overnight


class Frame(NamedTuple):
    """Ids of a chat template around the contents of a conversation of two user turns."""
    open: list[int]                            # ... user content
    close: list[int]                           # ... assistant content
    reopen: list[int]                          # ... user content
    reclose: list[int]                         # ... assistant content


class Tokenizer:
    """Encode, decode and frame chat turns for the checkpoint in `folder`.

    Attributes: `frame`, the template's ids around the contents of a conversation; `lead`, what stands between `close`
    and the first character of an assistant's turn ("" or a blank).

    Raises InputError naming the file where one is missing or broken, or where the template cannot frame a conversation.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        settings = read_json(folder / "tokenizer_config.json")
        self.model = _Fast(folder) if (folder / "tokenizer.json").exists() else _SentencePiece(folder, settings)
        self.source, self.template = _template(folder, settings)
        names = {key: _content(settings.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
        self.names = {key: name for key, name in names.items() if name}       # one that is not set prints as nothing
        # Some tokenizers put a blank before whatever they are given; a piece from the middle of a prompt must not get
        # it.
        newline = self.model.encode("\n", False)
        self.guard = newline if self.model.encode("\nx", False) != newline + self.model.encode("x", False) else []
        first = [{"role": "user", "content": SLOT}]
        both = [*first, {"role": "assistant", "content": SLOT}, {"role": "user", "content": SLOT}]
        one, two = self.render(first).split(SLOT), self.render(both).split(SLOT)
        if len(one) != 2 or len(two) != 4:
            raise InputError(f"{self.source}: the chat template does not print what user and assistant say")
        # A template may put white space before an assistant's words that its generation prompt leaves out. A blank
        # (Llama-2) is part of the first word's token; a newline belongs to the frame.
        white = two[1].removeprefix(one[1])
        self.lead = " " if white == " " else ""
        close = one[1] if white == " " or white.strip() else two[1]
        opening = self.model.encode(one[0], True)
        self.frame = Frame(opening, *(self.encode(text, specials=True) for text in (close, two[2], two[3])))
        if self.first("Yes") == self.first("No"):
            raise InputError(f"{folder}: Yes and No begin with the same token behind the chat template's header")
        anew, kept = self.encode, lru_cache(1 << 16)(self.encode)      # nodes are encoded again for every query,
        self.encode = lambda text, specials=False: (kept if len(text) < 1 << 13 else anew)(text, specials)   # books not

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """Ids of a piece of a prompt, without an added BOS; special tokens are recognised only where `specials`
        says."""
        if self.guard:
            ids = self.model.encode("\n" + text, specials)
            if ids[:len(self.guard)] == self.guard:
                return ids[len(self.guard):]
        return self.model.encode(text, specials)

    @property
    def bos(self) -> list[int]:
        """The token that begins a text; none where the checkpoint has none."""
        return self.encode(self.names["bos_token"], specials=True) if "bos_token" in self.names else []

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self.model.decode(ids)

    def ends(self, ids: list[int]) -> tuple[str, list[int]]:
        """The text of `ids`, and for every token the number of characters up to its end."""
        return self.decode(ids), [len(self.decode(ids[:n])) for n in range(1, len(ids) + 1)]

    def unknown(self, text: str) -> float:
        """Share of the tokens of a text that stand for something the vocabulary lacks."""
        ids, name = self.encode(text), self.names.get("unk_token")
        unknown = self.encode(name, specials=True) if name else []
        return ids.count(unknown[0]) / len(ids) if len(unknown) == 1 and ids else 0.0

    def first(self, word: str) -> int:
        """The first token of an assistant's turn that says `word`."""
        return self.encode(self.lead + word)[0]

    def render(self, messages: list[dict]) -> str:
        """The checkpoint's own template over `messages` (role, content), up to the start of the assistant's turn."""
        def fail(message):
            raise InputError(f"{self.source}: the chat template refuses the conversation: {message}")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
        environment.globals |= {"raise_exception": fail, "strftime_now": TODAY.strftime}
        environment.filters["tojson"] = lambda x, **options: json.dumps(x, ensure_ascii=False, **options)
        try:
            return environment.from_string(self.template).render(
                messages=messages, add_generation_prompt=True, date_string=TODAY.strftime("%d %b %Y"), tools=None,
                documents=None, **self.names)
        except InputError:
            raise
        except Exception as error:                          # a template is a program: it may fail in any way
            raise InputError(f"{self.source}: the chat template cannot be rendered ({error})") from None


class _Fast:
    """tokenizer.json, with one copy that knows special tokens and one that treats the names of all added tokens,
    marked as special or not, as plain text."""

    def __init__(self, folder: Path):
        path = folder / "tokenizer.json"
        raw = read_json(path) | {"truncation": None, "padding": None}       # those of a training run: text stays whole
        try:
            self.special = tokenizers.Tokenizer.from_str(json.dumps(raw))
            for token in raw.get("added_tokens", []):
                token["special"] = True
            self.plain = tokenizers.Tokenizer.from_str(json.dumps(raw))
        except Exception as error:                          # the library raises bare Exception
            raise InputError(f"{path}: not a readable tokenizer ({error})") from None
        self.plain.encode_special_tokens = True

    def encode(self, text, specials):
        return (self.special if specials else self.plain).encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.special.decode(ids, skip_special_tokens=True)


class _SentencePiece:
    """tokenizer.model; the special tokens are its control pieces and those tokenizer_config.json adds."""

    def __init__(self, folder: Path, settings: dict):
        import sentencepiece
        path = folder / "tokenizer.model"
        if not path.exists():
            raise InputError(f"{folder}: neither tokenizer.json nor tokenizer.model is there")
        try:
            self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise InputError(f"{path}: not a sentencepiece model ({error})") from None
        self.specials = {self.pieces.id_to_piece(i): i for i in range(self.pieces.get_piece_size())
                         if self.pieces.is_control(i)}
        self.specials |= {added["content"]: int(i) for i, added in settings.get("added_tokens_decoder", {}).items()}
        for name in self.specials:
            if name in self.pieces.encode(name, out_type=str):
                raise InputError(f"{path}: {name} is a user-defined symbol, which sentencepiece recognises in a "
                                 "document's text too; give a tokenizer.json")

    def encode(self, text, specials):
        if not specials or not self.specials:
            return self.pieces.encode(text)
        names = "|".join(map(re.escape, sorted(self.specials, key=len, reverse=True)))
        return [i for part in re.split(f"({names})", text) if part
                for i in ([self.specials[part]] if part in self.specials else self.pieces.encode(part))]

    def decode(self, ids):
        special = set(self.specials.values())
        return self.pieces.decode([i for i in ids if i not in special])


def _content(token):
    return token.get("content") if isinstance(token, dict) else token


def _template(folder, settings):
    """Where the chat template stands, and its text."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path, path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from None
    template = settings.get("chat_template")
    if isinstance(template, list):                          # several named templates: the default one
        template = next((entry.get("template") for entry in template
                         if isinstance(entry, dict) and entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise InputError(f"{folder}: no chat template; PECAN asks in turns, take an Instruct or chat checkpoint")
    return folder / "tokenizer_config.json", template
