"""A checkpoint's tokenizer and chat template.

Only JSON and sentencepiece files are read. The template's text may name special tokens. A document's text never may: a
`<|eot_id|>` inside a document stays plain text.
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

from core.files import InputError, read_json, reading

PLACEHOLDER = "\ue000"                       # a private-use character: where the content of a turn goes in a template
TODAY = datetime.datetime(2024, 7, 26)       # the date every template prints: a prompt must not change overnight
KEPT_TEXTS = 1 << 16                         # how many texts keep their ids
KEPT_LENGTH = 1 << 13                        # in characters: longer texts do not


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

    Raises InputError naming the file if one is missing or broken, if the template cannot frame a conversation, if a
    document's text could become a special token, or if an id is beyond the model's `vocabulary` of so many tokens.
    """

    def __init__(self, folder: str | Path, vocabulary: int | None = None):
        folder = Path(folder)
        with reading(folder, "its tokenizer cannot be used"):
            settings = read_json(folder / "tokenizer_config.json")
            is_fast = (folder / "tokenizer.json").exists()
            self.vocabulary = _Fast(folder) if is_fast else _SentencePiece(folder, settings)
            self.protective_newline = self._protective_newline()

            # Nodes are encoded again for every query, so their ids are kept. Those of books are not.
            self._kept_ids = lru_cache(KEPT_TEXTS)(self._ids)

            self.source, self.template = _template(folder, settings)
            self.special_names = _special_names(settings)
            self.frame, self.reply_prefix = self._frame()
            if self.first("Yes") == self.first("No"):
                raise InputError(f"{folder}: Yes and No begin with the same token after the chat template's header")

        largest = max(self.vocabulary.largest, *(token for ids in self.frame for token in ids))
        if vocabulary is not None and largest >= vocabulary:
            raise InputError(f"{folder}: the tokenizer gives ids up to {largest}, and vocab_size of config.json is "
                             f"{vocabulary}; the two belong to different models")

    def _protective_newline(self) -> list[int]:
        """The ids of a newline if the tokenizer adds a blank to the start of any text, else [].

        A segment from the middle of a prompt must not get that blank. So it is encoded after a newline, which takes
        the blank, and the newline's ids are cut off.
        """
        newline = self.vocabulary.encode("\n", False)
        adds_blank = self.vocabulary.encode("\nx", False) != newline + self.vocabulary.encode("x", False)
        return newline if adds_blank else []

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
        ids = [self.vocabulary.encode(opening, True)]
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

    def _ids(self, text: str, specials: bool) -> list[int]:
        """What encode returns, computed anew."""
        newline = self.protective_newline
        if newline:
            ids = self.vocabulary.encode("\n" + text, specials)
            if ids[:len(newline)] == newline:
                return ids[len(newline):]
        return self.vocabulary.encode(text, specials)

    @property
    def bos(self) -> list[int]:
        """The token that begins a text; [] if the checkpoint has none."""
        name = self.special_names.get("bos_token")
        return self.encode(name, specials=True) if name else []

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self.vocabulary.decode(ids)

    def ends(self, ids: list[int]) -> tuple[str, list[int]]:
        """The text of `ids`, and for every token the number of characters up to its end."""
        return self.decode(ids), [len(self.decode(ids[:n])) for n in range(1, len(ids) + 1)]

    def unknown(self, text: str) -> float:
        """Share of the tokens of a text that replace something the vocabulary lacks."""
        ids = self.encode(text)
        name = self.special_names.get("unk_token")
        unknown = self.encode(name, specials=True) if name else []
        return ids.count(unknown[0]) / len(ids) if len(unknown) == 1 and ids else 0.0

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


# --- vocabularies ---------------------------------------------------------------------------------------------------

class _Fast:
    """tokenizer.json in two copies: `special` knows special tokens, `plain` does not.

    In `plain` the names of all added tokens, marked as special or not, are text.
    """

    def __init__(self, folder: Path):
        path = folder / "tokenizer.json"
        raw = read_json(path)

        # A training run may have left its truncation and padding there. A text stays whole.
        raw |= {"truncation": None, "padding": None}
        with reading(path, "not a readable tokenizer"):
            self.special = tokenizers.Tokenizer.from_str(json.dumps(raw, allow_nan=False))
            added = raw.get("added_tokens", [])
            specials = [token["content"] for token in added if token["special"]]
            for token in added:
                token["special"] = True
            self.plain = tokenizers.Tokenizer.from_str(json.dumps(raw, allow_nan=False))
        self.plain.encode_special_tokens = True
        self.largest = max(self.plain.get_vocab(with_added_tokens=False).values(), default=0)

        # The model's own vocabulary may have a special token, too. (The unknown token is what any text may become.)
        unknown = raw["model"].get("unk_token"), raw["model"].get("unk_id")
        for name in specials:
            i = self.special.token_to_id(name)
            if name not in unknown and i not in unknown and i in self.encode(name, False):
                raise InputError(f"{path}: {name} in a document's text would become that special token, because the "
                                 "vocabulary itself has it; take a tokenizer.json without it there")

    def encode(self, text, specials):
        tokenizer = self.special if specials else self.plain
        return tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.special.decode(ids, skip_special_tokens=True)


class _SentencePiece:
    """tokenizer.model. Its special tokens are its control tokens and those that tokenizer_config.json adds."""

    def __init__(self, folder: Path, settings: dict):
        import sentencepiece
        path = folder / "tokenizer.model"
        if not path.exists():
            raise InputError(f"{folder}: neither tokenizer.json nor tokenizer.model is there")
        with reading(path, "not a sentencepiece model"):
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))

        self.largest = self.processor.get_piece_size() - 1
        self.specials = {}                                  # name -> id
        for i in range(self.processor.get_piece_size()):
            if self.processor.is_control(i):
                self.specials[self.processor.id_to_piece(i)] = i
        for i, added in settings.get("added_tokens_decoder", {}).items():
            self.specials[added["content"]] = int(i)

        for name in self.specials:
            if name in self.processor.encode(name, out_type=str):
                raise InputError(f"{path}: {name} is a user-defined symbol, which sentencepiece recognises in a "
                                 "document's text too; give a tokenizer.json")

    def encode(self, text, specials):
        if not specials or not self.specials:
            return self.processor.encode(text)

        # Cut the text at the names of special tokens; a name that contains another one goes first.
        names = "|".join(map(re.escape, sorted(self.specials, key=len, reverse=True)))
        ids = []
        for part in re.split(f"({names})", text):
            if not part:
                continue
            if part in self.specials:
                ids.append(self.specials[part])
            else:
                ids += self.processor.encode(part)
        return ids

    def decode(self, ids):
        special = set(self.specials.values())
        return self.processor.decode([i for i in ids if i not in special])


# --- tokenizer_config.json ------------------------------------------------------------------------------------------

def _special_names(settings: dict) -> dict[str, str]:
    """The names of the special tokens that are set; a template prints nothing for the others."""
    names = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = settings.get(key)
        if token:
            names[key] = token["content"] if isinstance(token, dict) else token
    return names


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
        raise InputError(f"{folder}: no chat template; PECAN asks in turns, take an Instruct or chat checkpoint")
    return folder / "tokenizer_config.json", template
