"""A checkpoint's tokenizer and chat template.

Only JSON and sentencepiece files are read. Template text may name special tokens; document text never may: a
`<|eot_id|>` inside a document stays plain text.
"""
import datetime
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jinja2.ext
import jinja2.sandbox
import tokenizers

from support.files import InputError, read_json

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


def split(tokenizer, text: str, limit: int) -> list[str]:
    """Cut text into chunks of at most `limit` tokens, at the last white space that fits.

    White space inside a chunk becomes one blank. Only a word longer than a chunk is cut inside.
    """
    finished, chunk = [], []                                # chunks, and the words of the next one
    used = 0
    words = text.split()[::-1]                              # a stack, the next word on top
    while words:
        word = words.pop()
        length = len(tokenizer.encode(" " + word))          # tokens never span white space
        if length > limit and len(word) > 1:
            middle = len(word) // 2
            words += [word[middle:], word[:middle]]
            continue

        if chunk and used + length > limit:
            finished.append(" ".join(chunk))
            chunk = []
            used = 0
        chunk.append(word)
        used += length
    return [*finished, " ".join(chunk)] if chunk else finished


def tokens_of(span: tuple[int, int], token_ends: list[int]) -> list[int]:
    """The tokens of a reply that have a character in span = (start, end); token x ends before token_ends[x]."""
    start, end = span
    tokens = []
    token_start = 0
    for x, token_end in enumerate(token_ends):
        if token_start < end and token_end > start:
            tokens.append(x)
        token_start = token_end
    return tokens


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
