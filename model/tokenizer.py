"""A checkpoint's tokenizer and chat template.

Only JSON and sentencepiece files are read. Special tokens are recognised in the template, never in a document: a
`<|eot_id|>` in a document stays plain text.
"""
import datetime
import json
import re
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import jinja2.ext
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, normalizers

from core.files import InputError, read_json, reading

PLACEHOLDER = "\ue000"                       # a private-use character: where the content of a turn goes in a template
TODAY = datetime.datetime(2024, 7, 26)       # the date every template prints: a prompt must not change overnight
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")      # a template prints "" for one that is not set
KEPT_TEXTS = 1 << 16                         # the ids of this many texts are kept
KEPT_LENGTH = 1 << 13                        # characters; ids of longer texts are not kept


# Byte-level BPE writes each byte as one character: a printable one as itself, all others from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}


class Frame(NamedTuple):
    """Ids of a chat template around the contents of a conversation of two user turns."""
    open: list[int]                            # ... user content
    close: list[int]                           # ... assistant content
    reopen: list[int]                          # ... user content
    reclose: list[int]                         # ... assistant content


class Tokenizer:
    """Encode, decode and frame chat turns for the checkpoint in `folder`.

    Attributes: `frame`, the template's ids around the contents of a conversation; `reply_prefix`, the text between
    `close` and the first character of an assistant's turn ("" or a blank).

    Raises InputError if a file is missing or broken, if the template cannot frame a conversation, if a document's text
    could become a special token, or if an id is not below `vocabulary`, the size of the model's vocabulary.
    """

    def __init__(self, folder: str | Path, vocabulary: int | None = None):
        folder = Path(folder)
        with reading(folder, "its tokenizer cannot be used"):
            settings = read_json(folder / "tokenizer_config.json")
            self.special, self.plain = _two_copies(folder, settings)

            # Some tokenizers add a blank to the start of any text. A segment from the middle of a prompt must not get
            # it. So it is encoded after a newline, which takes the blank, and the newline's ids are cut off.
            newline = self._segment("\n", False)
            adds_blank = self._segment("\nx", False) != newline + self._segment("x", False)
            self.protective_newline = newline if adds_blank else []

            # Nodes are encoded again for every query, so their ids are kept. The ids of whole books are not.
            self._kept_ids = lru_cache(KEPT_TEXTS)(self._ids)

            self.source, self.template = _template(folder, settings)
            self.special_names = {key: name["content"] if isinstance(name, dict) else name
                                  for key in SPECIAL if (name := settings.get(key))}
            self.frame, self.reply_prefix = self._frame()
            if self.first("Yes") == self.first("No"):
                raise InputError(f"{folder}: Yes and No begin with the same token after the chat template's header")

        words = self.plain.get_vocab(with_added_tokens=False)
        largest = max(*words.values(), *(token for ids in self.frame for token in ids))
        if vocabulary is not None and largest >= vocabulary:
            raise InputError(f"{folder}: the tokenizer gives ids up to {largest}, and vocab_size of config.json is "
                             f"{vocabulary}; the two belong to different models")

    def _frame(self) -> tuple[Frame, str]:
        """The frame and the reply prefix, cut out of a rendered conversation.

        Raises InputError if the template does not print the contents of all turns.
        """
        user = {"role": "user", "content": PLACEHOLDER}
        assistant = {"role": "assistant", "content": PLACEHOLDER}
        turn = self.render([user]).split(PLACEHOLDER)
        conversation = self.render([user, assistant, user]).split(PLACEHOLDER)
        if len(turn) != 2 or len(conversation) != 4:
            raise InputError(f"{self.source}: the chat template does not print what user and assistant say")

        # A template may put white space before an assistant's words that its generation prompt leaves out. A blank
        # (Llama-2) is part of the first word's token; a newline belongs to the frame.
        opening, header = turn
        _, before_reply, reopening, last_header = conversation
        added = before_reply.removeprefix(header)
        if added == " ":
            reply_prefix = " "
            close = header
        else:
            reply_prefix = ""
            close = header if added.strip() else before_reply

        # A prompt begins with `open`, so the blank that a tokenizer may add belongs there.
        ids = [self._segment(opening, True)]
        for text in (close, reopening, last_header):
            ids.append(self.encode(text, specials=True))
        return Frame(*ids), reply_prefix

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """Ids of a segment of a prompt, without an added BOS.

        Special tokens are recognised if `specials`; otherwise their names are plain text. Do not change the list: the
        next call may return the same one.
        """
        if len(text) < KEPT_LENGTH:
            return self._kept_ids(text, specials)
        return self._ids(text, specials)

    def _segment(self, text: str, specials: bool) -> list[int]:
        """Ids of a text as the tokenizer gives them, with the blank that it may add."""
        tokenizer = self.special if specials else self.plain
        return tokenizer.encode(text, add_special_tokens=False).ids

    def _ids(self, text: str, specials: bool) -> list[int]:
        newline = self.protective_newline
        if newline:
            ids = self._segment("\n" + text, specials)
            if ids[:len(newline)] == newline:
                return ids[len(newline):]
        return self._segment(text, specials)

    @property
    def bos(self) -> list[int]:
        """The token that begins a text; [] if the checkpoint has none."""
        return self.encode(self.special_names.get("bos_token", ""), specials=True)

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self.special.decode(ids, skip_special_tokens=True)

    def spans(self, ids: list[int]) -> tuple[str, list[tuple[int, int]]]:
        """The text of `ids`, and for every token the characters (start, end) with which it shares a byte.

        A character may take several tokens, and a token may hold parts of several characters. A special token has no
        characters: its span is empty. A byte that belongs to no character shows as U+FFFD.
        """
        pieces = []                                         # the bytes of each token
        begun = False
        for token in ids:
            alone, twice = self.decode([token]), self.decode([token, token])
            if "\ufffd" in alone:
                pieces.append(self._broken(token, alone))
            else:                                           # some decoders strip the first blank of a text
                pieces.append((twice.removeprefix(alone) if begun else alone).encode())
            begun = begun or bool(twice)

        # Python shows each byte that belongs to no character as one surrogate.
        text = b"".join(pieces).decode(errors="surrogateescape")
        owners = [n for n, character in enumerate(text) for _ in character.encode(errors="surrogateescape")]
        spans = []
        end = 0                                             # bytes so far
        for piece in pieces:
            start, end = end, end + len(piece)
            spans.append((owners[start], owners[end - 1] + 1) if piece else (0, 0))
        return re.sub("[\udc80-\udcff]", "\ufffd", text), spans

    def _broken(self, token: int, alone: str) -> bytes:
        """The bytes of a token that is no text `alone`, because it holds a part of a character."""
        name = self.special.id_to_token(token)
        if re.fullmatch("<0x[0-9A-F]{2}>", name):           # byte fallback, as in Llama 2
            return bytes.fromhex(name[3:5])
        if all(character in BYTES for character in name):   # byte-level BPE, as in Llama 3
            return bytes(BYTES[character] for character in name)
        return alone.encode()                               # U+FFFD itself

    def unknown(self, text: str) -> float:
        """The share of a text's tokens that stand for something the vocabulary lacks."""
        ids = self.encode(text)
        token = self.special.token_to_id(self.special_names.get("unk_token", ""))
        return ids.count(token) / max(1, len(ids))

    def first(self, word: str) -> int:
        """The first token of an assistant's turn that says `word`."""
        return self.encode(self.reply_prefix + word)[0]

    def render(self, messages: list[dict]) -> str:
        """The checkpoint's own template over `messages` (role, content), up to the start of the assistant's turn.

        Raises InputError if the template refuses the conversation or fails.
        """
        def refuse(message):
            raise InputError(f"{self.source}: the chat template refuses the conversation: {message!s:.300}")

        # The functions, filters and white space rules that transformers gives to templates.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
        environment.globals |= {"raise_exception": refuse, "strftime_now": TODAY.strftime}
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)

        with reading(self.source, "the chat template cannot be rendered"):
            return environment.from_string(self.template).render(
                messages=messages, add_generation_prompt=True, date_string=TODAY.strftime("%d %b %Y"), tools=None,
                documents=None, **self.special_names)


# --- tokenizer.json and tokenizer.model ------------------------------------------------------------------------------

def _two_copies(folder: Path, settings: dict) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """The tokenizer twice: the first knows special tokens, the second reads their names as plain text.

    Raises InputError if the second also makes a special token from its name, because the vocabulary has that token.
    """
    path = folder / "tokenizer.json"
    if path.exists():
        raw = read_json(path)
    else:
        path = folder / "tokenizer.model"
        raw = json.loads(_of_sentencepiece(path, settings).to_str())

    # A training run may have left truncation and padding in the file. Here a text stays whole.
    raw |= {"truncation": None, "padding": None}
    with reading(path, "not a readable tokenizer"):
        special = tokenizers.Tokenizer.from_str(json.dumps(raw, allow_nan=False))
        plain = tokenizers.Tokenizer.from_str(json.dumps(raw | {"added_tokens": []}, allow_nan=False))
        names = [token["content"] for token in raw["added_tokens"] if token["special"]]

    for name in names:
        ids = plain.encode(name, add_special_tokens=False).ids
        if special.token_to_id(name) in ids and name != raw["model"].get("unk_token"):    # any text may become it
            raise InputError(f"{path}: {name} in a document's text would become that special token, because the "
                             "vocabulary itself has it; use a tokenizer.json without it there")
    return special, plain


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)     # types of sentencepiece's tokens, and GGUF's
SPACE = "▁"
PROBE = "a  b\n\tCDs, ½ ﬁ é e\u0301 東京 👍🏽"            # rules other than Llama's would change it


def _of_sentencepiece(path: Path, settings: dict) -> tokenizers.Tokenizer:
    """The tokenizer of tokenizer.model. Control tokens and those that tokenizer_config.json adds are special."""
    import sentencepiece
    with reading(path, "not a sentencepiece model"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))

    ids = list(range(model.get_piece_size()))
    tokens = model.id_to_piece(ids)
    types = [UNKNOWN if model.is_unknown(i) else CONTROL if model.is_control(i) else BYTE if model.is_byte(i) else
             NORMAL for i in ids]
    added = {int(i): token["content"] for i, token in settings.get("added_tokens_decoder", {}).items()}
    for i in sorted(added.keys() - ids):
        tokens.append(added[i])
        types.append(CONTROL)

    tokenizer = of_pieces(tokens, types, model.get_score(ids))
    if tokenizer.encode(PROBE, add_special_tokens=False).ids != model.encode(PROBE):
        raise InputError(f"{path}: not a BPE like Llama 2's; give a tokenizer.json")
    return tokenizer


def of_pieces(tokens: list[str], types: list[int], scores: list[float]) -> tokenizers.Tokenizer:
    """Llama 2's BPE: of all neighbours that can merge into a token, those merge first whose token scores highest."""
    vocabulary = words_of(tokens, types)
    normal = {token for token, i in vocabulary.items() if types[i] == NORMAL}
    merges = []
    for token in sorted(normal, key=lambda token: (-scores[vocabulary[token]], vocabulary[token])):
        for cut in range(1, len(token)):
            if token[:cut] in normal and token[cut:] in normal:
                merges.append((token[:cut], token[cut:]))

    unknown = next((token for token, i in vocabulary.items() if types[i] == UNKNOWN), None)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True,
                                                byte_fallback=BYTE in types))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    add_specials(tokenizer, tokens, types)
    return tokenizer


def words_of(tokens: list[str], types: list[int]) -> dict[str, int]:
    """The vocabulary: all tokens up to the last one that text can give. All later tokens are special."""
    last = max(i for i, kind in enumerate(types) if kind in (NORMAL, BYTE))
    return {token: i for i, token in enumerate(tokens[:last + 1])}


def add_specials(tokenizer: tokenizers.Tokenizer, tokens: list[str], types: list[int]):
    """Add the tokens that text cannot give; ValueError if one would not keep its id."""
    for i, token in enumerate(tokens):
        if types[i] in (NORMAL, BYTE):
            continue
        tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False, special=types[i] != USER_DEFINED)])
        if tokenizer.token_to_id(token) != i:
            raise ValueError(f"token {token!r} would not keep its id {i} in tokenizer.json")


# --- tokenizer_config.json ------------------------------------------------------------------------------------------

def _template(folder: Path, settings: dict) -> tuple[Path, str]:
    """The file that holds the chat template, and the template's text; InputError if there is none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        with reading(path):
            return path, path.read_text(encoding="utf-8")

    template = settings.get("chat_template")
    if isinstance(template, list):                          # several, each with its name
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    if not isinstance(template, str):
        raise InputError(f"{folder}: no chat template; PECAN asks in turns, so use an Instruct or chat checkpoint")
    return folder / "tokenizer_config.json", template
