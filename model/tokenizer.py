"""A checkpoint's tokenizer and chat template.

Both are understood as transformers understands them, so that a prompt has the ids the model was trained with; what we
do not implement is refused. Only JSON and sentencepiece files are read. Special tokens are recognised in the template,
never in a document: a `<|eot_id|>` in a document stays plain text.
"""
import copy
import datetime
import json
import re
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import jinja2.ext
import jinja2.sandbox
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from core.files import TEXT, InputError, Rule, check_values, read_json, reading
from model.checkpoint import check_implemented

SHIELD = "\ue000"                            # a private-use character: no token joins it to what follows
# Where the content of a turn goes in a template. What changes a text, in a template or a vocabulary, changes this one.
PROBE = "a  b\n\tCDs, ½ ﬁ é e\u0301 東京 👍🏽"
TODAY = datetime.datetime(2024, 7, 26)       # the date every template prints: a prompt must not change overnight
THOUGHT = re.compile(r"<(think|thinking|thought|reasoning)>(?!.*</\1>)", re.DOTALL)          # opened and not closed
KEPT_TEXTS = 1 << 16                         # the ids of this many texts are kept
KEPT_LENGTH = 1 << 13                        # characters; ids of longer texts are not kept


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what an assistant says, for training. Here its content is printed and nothing else."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class Frame(NamedTuple):
    """Ids of a chat template around the contents of a conversation of two user turns."""
    open: list[int]                            # ... user content
    close: list[int]                           # ... assistant content
    reopen: list[int]                          # ... user content
    reclose: list[int]                         # ... assistant content


class Tokenizer:
    """Encode, decode and frame chat turns for the checkpoint in `folder`.

    Attributes: `frame`, the template's ids around the contents of a conversation; `reply_prefix`, the text between
    `close` and the first character of an assistant's turn ("" or a blank); `closing`, the tokens that close an
    assistant's turn, so they end a reply.

    Raises InputError if a file is missing or broken, if the template cannot frame a conversation, if a document's text
    could become a special token, or if an id is not below `vocabulary`, the size of the model's vocabulary.
    """

    def __init__(self, folder: str | Path, vocabulary: int | None = None):
        folder = Path(folder)
        with reading(folder, "its tokenizer cannot be used"):
            settings = _settings(folder)
            special = _special_tokens(folder / "tokenizer_config.json", settings)
            path, self.special = _vocabulary(folder, settings, [*special.values()])
            self.source, self.template = _template(folder, settings)
            self.special_names = {name: token.content for name, token in special.items()}

            # Some tokenizers add a blank to the start of any text. A segment from the middle of a prompt must not get
            # it. So it is encoded after a character that takes the blank, and that character's ids are cut off.
            shield = self._segment(SHIELD, True)
            adds_blank = self._segment(SHIELD + "x", True) != shield + self._segment("x", True)
            self.shield = shield if adds_blank else []

            # Nodes are encoded again for every query, so their ids are kept. The ids of whole books are not.
            self._kept_ids = lru_cache(KEPT_TEXTS)(self._ids)

            self.frame, self.reply_prefix = self._frame()
            control = self._control_tokens()
            self.plain = _without(self.special, control.values(), path)
            self.closing = self._closing(control)
            if self.first("Yes") == self.first("No"):
                raise InputError(f"{folder}: Yes and No begin with the same token after the chat template's header")

        added = self.special.get_added_tokens_decoder().keys() - control.keys()
        words = self.plain.get_vocab(with_added_tokens=False).values()
        largest = max(*words, *added, *(token for ids in self.frame for token in ids))
        if vocabulary is not None and largest >= vocabulary:
            raise InputError(f"{folder}: the tokenizer gives ids up to {largest}, and vocab_size of config.json is "
                             f"{vocabulary}; the two belong to different models")

    def _frame(self) -> tuple[Frame, str]:
        """The frame and the reply prefix, cut out of a rendered conversation.

        Raises InputError if the template does not print the contents of all turns, or if its generation prompt is not
        the beginning of an assistant's turn, where the model says Yes or No.
        """
        user = {"role": "user", "content": PROBE}
        assistant = {"role": "assistant", "content": PROBE}
        prompt = self.render([user])
        conversation = self.render([user, assistant, user])
        if prompt.count(PROBE) != 1 or conversation.count(PROBE) != 3:
            raise InputError(f"{self.source}: the chat template does not print unchanged what user and assistant say")

        # A template may put white space before an assistant's words that its generation prompt leaves out. A blank
        # (Llama-2) is part of the first word's token; a newline belongs to the frame.
        opening, header = prompt.split(PROBE)
        _, before_reply, reopening, last_header = conversation.split(PROBE)
        added = before_reply.removeprefix(header)
        if not conversation.startswith(prompt) or added.strip():
            raise InputError(f"{self.source}: the chat template asks for a reply by {header!r:.80}, which is not how "
                             f"the assistant's turn begins in a conversation, {before_reply!r:.80}")
        if THOUGHT.search(header):
            raise InputError(f"{self.source}: the chat template asks for a thought by {header!r:.80}; PECAN needs one "
                             "that asks for the reply, Yes or No")
        reply_prefix = " " if added == " " else ""

        # A prompt begins with `open`, so the blank that a tokenizer may add belongs there.
        ids = [self._segment(opening, True)]
        for text in (before_reply.removesuffix(reply_prefix), reopening, last_header):
            ids.append(self.encode(text, specials=True))
        return Frame(*ids), reply_prefix

    def _control_tokens(self) -> dict[int, AddedToken]:
        """The tokens that no text may smuggle in: special ones, and added tokens that the chat template prints.

        Other added tokens stay words in a document. So do a template's plain words, such as "user", and its signs.
        """
        framed = {token for ids in self.frame for token in ids}
        return {i: token for i, token in self.special.get_added_tokens_decoder().items() if token.special or
                (i in framed or token.content in self.template) and re.search(r"\w\W|\W\w", token.content)}

    def _closing(self, control) -> tuple[int, ...]:
        """The token that closes an assistant's turn, if a control token does so; white space may stand before it."""
        for token in self.frame.reopen:
            if token in control:
                return (token,)
            if self.decode([token]).strip():
                break
        return ()

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
        shield = self.shield
        if shield:
            ids = self._segment(SHIELD + text, specials)
            if ids[:len(shield)] == shield:
                return ids[len(shield):]
        return self._segment(text, specials)

    @property
    def bos(self) -> list[int]:
        """The token that begins a text; [] if the checkpoint has none."""
        return self.encode(self.special_names.get("bos_token", ""), specials=True)

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens left out, and bytes at the end that begin a character and do not complete it.

        A reply may be cut there; the decoder would replace the whole run of bytes before the cut.
        """
        for n, token in enumerate(reversed(ids[-3:]), 1):
            byte = re.fullmatch("<0x(..)>", self.special.id_to_token(token) or "")
            if not byte:
                break
            byte = int(byte[1], 16)
            if byte >= 0xC0:                                # the first byte of a character of 2, 3 or 4
                if n < 2 + (byte >= 0xE0) + (byte >= 0xF0):
                    ids = ids[:-n]
                break
        return self._decode(ids)

    def _decode(self, ids: list[int]) -> str:
        return self.special.decode(ids, skip_special_tokens=True)

    def reply(self, ids: list[int]) -> str:
        """What a model says in `ids`: their text without a thought, which ends with </think>."""
        return self.decode(ids).rpartition("</think>")[2]

    def spans(self, ids: list[int]) -> tuple[str, list[tuple[int, int]]]:
        """The text of `ids`, and for every token the characters (start, end) with which it shares a byte.

        A character may take several tokens, and a token may hold parts of several characters. A special token has no
        characters, nor has a byte that `decode` leaves out: their spans are empty.
        """
        text = self.decode(ids)
        owners = [n for n, character in enumerate(text) for _ in character.encode()]       # the character of each byte
        prefixes = [len(self._decode(ids[:n]).encode()) for n in range(len(ids) + 1)]
        spans = []
        end = 0                                             # bytes so far
        for x, token in enumerate(ids):
            start = end
            twice = self._decode([token, token])            # a blank alone would be stripped
            if "\ufffd" in twice:                           # a part of a character: prefixes that end here say nothing
                name = self.special.id_to_token(token)
                end += 1 if name.startswith("<0x") else len(name)          # byte fallback, or a character for each byte
            elif twice:
                start, end = prefixes[x:x + 2]
            own = owners[start:end]
            spans.append((own[0], own[-1] + 1) if own else (0, 0))
        return text, spans

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
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
        environment.globals |= {"raise_exception": refuse, "strftime_now": TODAY.strftime}
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)

        with reading(self.source, "the chat template cannot be rendered"):
            return environment.from_string(self.template).render(
                messages=messages, add_generation_prompt=True, date_string=TODAY.strftime("%d %b %Y"), tools=None,
                documents=None, **self.special_names)


# --- tokenizer_config.json ------------------------------------------------------------------------------------------

NAMES = "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
TOKENS = Rule((list, dict), lambda _: True, "a list of tokens")


def _settings(folder: Path) -> dict:
    """The values of tokenizer_config.json, except null; in older folders special_tokens_map.json has some of them."""
    path = folder / "tokenizer_config.json"
    settings = read_json(path)
    check_implemented(path, settings, {"split_special_tokens": False})      # or the template's would be plain text
    older = folder / "special_tokens_map.json"
    if older.exists() and "added_tokens_decoder" not in settings:
        settings |= read_json(older)
    return {key: value for key, value in settings.items() if value is not None}


def _template(folder: Path, settings: dict) -> tuple[Path, str]:
    """The file that holds the chat template, and the template's text; InputError if there is none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        with reading(path):
            return path, path.read_text(encoding="utf-8")

    path = folder / "tokenizer_config.json"
    template = settings.get("chat_template")
    with reading(path, "chat_template is neither a text nor a list of templates with names"):
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise InputError(f"{folder}: no chat template; PECAN asks in turns, so use an Instruct or chat checkpoint")
    return path, template


def _special_tokens(path: Path, settings: dict) -> dict:
    """The special tokens (AddedToken), with the names by which a template may print them."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    check_values({"extra_special_tokens": extra}, {"extra_special_tokens": TOKENS}, f"{path}: ")
    if isinstance(extra, list):
        extra = dict(enumerate(extra))
    names = [*NAMES, *(name for name, token in settings.items() if name.endswith("_token") and isinstance(token, str))]
    named = {name: settings[name] for name in names if name in settings}
    return {str(name): _token(path, token, special=True) for name, token in (named | extra).items()}


def _token(path: Path, token: str | dict, **flags) -> AddedToken:
    """A token as the files give it: a text, or an object with the text and flags."""
    given = token if isinstance(token, dict) else {"content": token}
    check_values(given, {"content": TEXT}, f"{path}: a token's ")
    with reading(path, f"the flags of token {given['content']!r} must be true or false"):
        return AddedToken(**{key: value for key, value in given.items() if key not in ("__type", "id")} | flags)


# --- tokenizer.json and tokenizer.model -----------------------------------------------------------------------------

SPACE = "▁"


def _vocabulary(folder: Path, settings: dict, special: list[AddedToken]) -> tuple[Path, tokenizers.Tokenizer]:
    """The file of the vocabulary, and its tokenizer, with the tokens that other files add as transformers adds them.

    Raises InputError if a token does not get the id that a file gives it.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        path = folder / "tokenizer.model"
    with reading(path, "not a readable tokenizer"):
        raw = read_json(path) if path.suffix == ".json" else _of_sentencepiece(path)
        # A training run may have left truncation and padding in the file. Here a text stays whole.
        raw |= {"truncation": None, "padding": None}
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(raw, allow_nan=False))
        own = [(path, token["id"], token) for token in raw["added_tokens"]]
        byte_level = "ByteLevel" in json.dumps([raw.get("pre_tokenizer"), raw.get("decoder")])
    config = folder / "config.json"
    given = read_json(config) if config.exists() else {}
    kind, name = given.get("model_type", "llama"), settings.get("tokenizer_class") or given.get("tokenizer_class")
    if kind == "llama" and name in LLAMA_CLASSES:
        if not byte_level:
            _follow_llama_tokenizer(tokenizer, settings)
    elif byte_level and (kind == "qwen2" or kind == "llama" and name in QWEN2_CLASSES):
        _follow_qwen2_tokenizer(tokenizer, settings)
    elif path.suffix == ".model" and kind == "llama" and name is None:
        pass                                                # as the package sentencepiece reads it
    elif path.suffix == ".model" or name in CODE_LLAMA or kind == "qwen2" and isinstance(tokenizer.model, models.BPE):
        raise InputError(f"{path}: tokenizer_class {name!r:.60} of model_type {kind!r:.60} is not implemented for "
                         "this file; only 'LlamaTokenizer' of 'llama' is; give another tokenizer.json")

    # Each file has flags for its tokens; the last one counts.
    place = folder / "tokenizer_config.json"
    with reading(place, "added_tokens_decoder must give a token for each id"):
        added = own + [(place, int(i), token) for i, token in settings.get("added_tokens_decoder", {}).items()]
    place = folder / "added_tokens.json"
    if "added_tokens_decoder" not in settings and place.exists():                          # older folders
        with reading(place, "must give an id for each token"):
            added = [(place, int(i), token) for token, i in read_json(place).items()] + own

    # In a tokenizer.model a token may be anywhere; a blank that is written before a text does not hide it.
    flags = {"normalized": False} if path.suffix == ".model" else {}
    for place, i, given in sorted(added, key=lambda entry: entry[1]):
        token = _token(place, given, **flags)
        token.special = token.special or any(token.content == other.content for other in special)
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != i:
            raise InputError(f"{place}: token {token.content!r} should have the id {i}, but gets "
                             f"{tokenizer.token_to_id(token.content)}")

    # Special tokens that the vocabulary lacks so far come last.
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in special if token.content not in known])
    return path, tokenizer


LLAMA_CLASSES = "LlamaTokenizer", "LlamaTokenizerFast"
CODE_LLAMA = "CodeLlamaTokenizer", "CodeLlamaTokenizerFast"            # transformers gives them rules of their own


def _follow_llama_tokenizer(tokenizer: tokenizers.Tokenizer, settings: dict):
    """Give the tokenizer the rules of transformers' class LlamaTokenizer, which replace a Llama's own in the file.

    A blank goes before a text, and with `legacy` also before what follows a special token.
    """
    blank = settings.get("add_prefix_space", True)
    scheme = "never" if not blank else "always" if settings.get("legacy") else "first"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    tokenizer.decoder = _decoder(blank)


QWEN2_CLASSES = "Qwen2Tokenizer", "Qwen2TokenizerFast"
QWEN2_WORD = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")


def _follow_qwen2_tokenizer(tokenizer: tokenizers.Tokenizer, settings: dict):
    """Give the tokenizer the rules of transformers' class Qwen2Tokenizer: it reads every Qwen2, whatever the file."""
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(QWEN2_WORD), "isolated"),
        pre_tokenizers.ByteLevel(settings.get("add_prefix_space", False), use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.model.ignore_merges = False


def _decoder(blank: bool) -> decoders.Decoder:
    """The decoder of Llama 2's kind; with `blank` it drops the one before a text."""
    strip = [decoders.Strip(" ", 1, 0)] if blank else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def _without(tokenizer: tokenizers.Tokenizer, control: list[AddedToken], path: Path) -> tokenizers.Tokenizer:
    """A copy of the tokenizer that reads the names of these tokens as plain text.

    Raises InputError if it also makes such a token from its name, because the vocabulary has that token.
    """
    plain = copy.deepcopy(tokenizer)
    plain.add_tokens([AddedToken(token.content, special=True) for token in control])
    plain.encode_special_tokens = True
    for token in control:
        if token.single_word:
            raise InputError(f"{path}: special token {token.content!r} is a single_word, which is not implemented")
        ids = plain.encode(token.content, add_special_tokens=False).ids
        unknown = getattr(plain.model, "unk_token", None)                                   # any text may become it
        if plain.token_to_id(token.content) in ids and token.content != unknown:
            raise InputError(f"{path}: {token.content} in a document's text would become that special token, because "
                             "the vocabulary itself has it; use a tokenizer.json without it there")
    return plain


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)     # types of sentencepiece's tokens


def _of_sentencepiece(path: Path) -> dict:
    """The content of a tokenizer.json for a tokenizer.model.

    It is Llama 2's BPE: of all neighbours that can merge into a token, those merge first whose token scores highest.
    """
    import sentencepiece
    with reading(path, "not a sentencepiece model"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        types = [dict(_fields(piece)).get(3, NORMAL) for number, piece in _fields(path.read_bytes()) if number == 1]

    ids = range(model.get_piece_size())
    tokens = [model.id_to_piece(i) for i in ids]
    normal = {tokens[i]: i for i in ids if types[i] == NORMAL}
    merges = []
    for token in sorted(normal, key=lambda token: (-model.get_score(normal[token]), normal[token])):
        for cut in range(1, len(token)):
            if token[:cut] in normal and token[cut:] in normal:
                merges.append((token[:cut], token[cut:]))

    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=tokens[model.unk_id()], fuse_unk=True,
                                                byte_fallback=BYTE in types))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = _decoder(blank=True)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=kind != USER_DEFINED)
                          for token, kind in zip(tokens, types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)])
    if tokenizer.encode(PROBE, add_special_tokens=False).ids != model.encode(PROBE):
        raise InputError(f"{path}: not a BPE like Llama 2's; give a tokenizer.json")
    return json.loads(tokenizer.to_str())


def _fields(message: bytes):
    """The fields of a protobuf message, as (number, value). Field 1 of a tokenizer.model is a token, and its field 3
    the token's type, which the package sentencepiece does not tell of user-defined tokens.
    """
    place = 0

    def number():
        nonlocal place
        value = shift = 0
        while message[place] & 0x80:                        # seven bits a byte, the last byte without the eighth
            value |= (message[place] & 0x7F) << shift
            shift += 7
            place += 1
        place += 1
        return value | message[place - 1] << shift

    while place < len(message):
        field, wire = divmod(number(), 8)
        if wire == 0:
            yield field, number()
        else:
            length = {1: 8, 5: 4}.get(wire) or number()
            yield field, message[place:place + length]
            place += length
