"""Text to token ids and back, and the chat template of a checkpoint.

Two readers, chosen by what the checkpoint carries: `tokenizer.json` (the tokenizers library) or, where that is all there
is, `tokenizer.model` (sentencepiece). Template text may name special tokens; document text never may: a `<|eot_id|>`
inside a document stays six plain pieces of text.
"""
import datetime
import json
import re
from pathlib import Path

import jinja2.ext
import jinja2.sandbox
import tokenizers

from data import InputError, read_json

SLOT = "\ue000"                              # a private-use character that marks where the content of a turn goes
TODAY = datetime.datetime(2024, 7, 26)       # the date every template prints: a prompt must not change overnight


class Tokenizer:
    """Encode, decode and frame chat turns for the checkpoint in `folder`.

    Attributes:
        frame: [open, close, reopen, reclose], the template's ids around the contents of a conversation
            open + user content + close + assistant content + reopen + user content + reclose (+ assistant content).
        lead: what stands between `close` and the first character of an assistant's turn ("" or a blank).

    Raises InputError naming the file where one is missing or broken.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        settings = read_json(folder / "tokenizer_config.json")
        self.model = _Fast(folder) if (folder / "tokenizer.json").exists() else _SentencePiece(folder, settings)
        self.template = _template(folder, settings)
        self.names = {key: _content(settings.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
        first = [{"role": "user", "content": SLOT}]
        both = [*first, {"role": "assistant", "content": SLOT}, {"role": "user", "content": SLOT}]
        one, two = self.render(first).split(SLOT), self.render(both).split(SLOT)
        if len(one) != 2 or len(two) != 4:
            raise InputError(f"{folder}: the chat template does not print the contents of user and assistant turns")
        # A template may put a blank before an assistant's words (Llama-2) that the generation prompt leaves to the model.
        self.lead = two[1].removeprefix(one[1]) if not two[1].removeprefix(one[1]).strip() else ""
        self.frame = [self.encode(text, specials=True) for text in (one[0], one[1], two[2], two[3])]

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """Ids of `text`, without an added BOS; special tokens are recognised only where `specials` says so."""
        return self.model.encode(text, specials)

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self.model.decode(ids)

    def ends(self, ids: list[int]) -> tuple[str, list[int]]:
        """The text of `ids`, and for every token the number of characters up to its end."""
        return self.decode(ids), [len(self.decode(ids[:n])) for n in range(1, len(ids) + 1)]

    def first(self, word: str) -> int:
        """The first token of an assistant's turn that says `word`."""
        return self.encode(self.lead + word)[0]

    def render(self, messages: list[dict]) -> str:
        """The checkpoint's own template over `messages` (role, content), up to the start of the assistant's turn."""
        def fail(message):
            raise InputError(f"the chat template refuses the conversation: {message}")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
        environment.globals |= {"raise_exception": fail, "strftime_now": TODAY.strftime}
        environment.filters["tojson"] = lambda x, **options: json.dumps(x, ensure_ascii=False, **options)
        try:
            return environment.from_string(self.template).render(
                messages=messages, add_generation_prompt=True, date_string=TODAY.strftime("%d %b %Y"), **self.names)
        except jinja2.TemplateError as error:
            raise InputError(f"the chat template cannot be rendered: {error}") from None


class _Fast:
    """tokenizer.json, with one copy that knows special tokens and one that treats their names as plain text."""

    def __init__(self, folder: Path):
        try:
            self.special, self.plain = (tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) for _ in range(2))
        except Exception as error:                          # the library raises bare Exception
            raise InputError(f"{folder / 'tokenizer.json'}: not a readable tokenizer ({error})") from None
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

    def encode(self, text, specials):
        if not specials or not self.specials:
            return self._plain(text)
        names = "|".join(map(re.escape, sorted(self.specials, key=len, reverse=True)))
        return [i for part in re.split(f"({names})", text) if part
                for i in ([self.specials[part]] if part in self.specials else self._plain(part))]

    def _plain(self, text):
        # sentencepiece puts a blank before whatever it is given; behind a newline of our own it falls on the newline.
        guard = self.pieces.encode("\n")
        ids = self.pieces.encode("\n" + text)
        return ids[len(guard):] if ids[:len(guard)] == guard else self.pieces.encode(text)

    def decode(self, ids):
        special = set(self.specials.values())
        return self.pieces.decode([i for i in ids if i not in special])


def _content(token):
    return token.get("content") if isinstance(token, dict) else token


def _template(folder, settings):
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):                          # several named templates: the default one
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise InputError(f"{folder}: no chat template; PECAN asks questions in turns, take an Instruct or chat checkpoint")
    return template
