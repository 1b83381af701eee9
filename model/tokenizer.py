"""A checkpoint's tokenizer and chat template.

Both are understood as transformers understands them, so that a prompt has the ids the model was trained with; what we
do not implement is refused. Only JSON and sentencepiece files are read. Special tokens are recognised in the template,
never in a document: a `<|eot_id|>` in a document stays plain text.
"""
import codecs
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

from core.files import TEXT, InputError, Rule, check_values, read_if_there, read_json, reading
from model.checkpoint import check_implemented

CONTENT = "\ue000"                           # a private-use character, which no token joins to its neighbours
# Stands for a turn's content, with all that a template or a vocabulary might change: blanks, capitals, accents.
SAMPLE = "a  b\n\tCDs, ½ ﬁ é e\u0301 東京 👍🏽"
TODAY = datetime.datetime(2024, 7, 26)       # the date every template prints: a prompt must not change overnight
THOUGHT = "(think|thinking|thought|reasoning)>"                                          # <think> .. </think>
KEPT_TEXTS = 1 << 16                         # the ids of this many texts are kept
KEPT_LENGTH = 1 << 13                        # characters; ids of longer texts are not kept


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what an assistant says, for training. Here its content is printed and nothing else."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)                                 # the tag itself
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def without_thought(reply: str) -> str:
    """What a model says after its thought, which becomes blanks, so that each character keeps its place.

    A thought that begins a reply and does not end takes all of it.
    """
    return re.sub(rf"(?s)\A(.*</{THOUGHT}|\s*<{THOUGHT}.*)", lambda thought: " " * len(thought[0]), reply)


class Frame(NamedTuple):
    """Ids of a chat template around the contents of a conversation of two user turns."""
    open: list[int]                            # ... user content
    close: list[int]                           # ... assistant content
    reopen: list[int]                          # ... user content
    reclose: list[int]                         # ... assistant content


class Tokenizer:
    """Encode, decode and frame chat turns for the checkpoint in `folder`.

    Attributes: `special` recognises special tokens, as the template needs it; `plain` reads their names as text, as a
    document needs it. `frame`, the template's ids around the contents of a conversation; `user_prefix` and
    `reply_prefix`, what comes before the first character of a user's and an assistant's turn ("" or a blank);
    `closing`, the tokens that close an assistant's turn, so they end a reply.

    Raises InputError if a file is missing or broken, if the template cannot frame a conversation, if a document's text
    could become a special token, or if an id is not below `vocabulary`, the size of the model's vocabulary.
    """

    def __init__(self, folder: str | Path, vocabulary: int | None = None):
        folder = Path(folder)
        with reading(folder, "its tokenizer cannot be used"):
            path, settings, special, self.special = _load(folder)
            self.source, self.template = _template(folder, settings)
            self.special_names = {name: token.content for name, token in special.items()}

            self.plain = _without_blanks(self.special)
            # Nodes are encoded again for every query, so their ids are kept. The ids of whole books are not.
            self._kept_ids = lru_cache(KEPT_TEXTS)(self._ids)

            self.frame, self.user_prefix, self.reply_prefix = self._frame()
            control = self._control_tokens()
            _read_as_text(self.plain, control.values(), path)
            self.closing = self._closing(control)
            if self.first("Yes") == self.first("No"):
                raise InputError(f"{folder}: Yes and No begin with the same token after the chat template's header")

        # A control token that no prompt contains needs no row in the embeddings.
        added = self.special.get_added_tokens_decoder().keys() - control.keys()
        words = self.plain.get_vocab(with_added_tokens=False).values()
        largest = max(*words, *added, *(token for ids in self.frame for token in ids))
        if vocabulary is not None and largest >= vocabulary:
            raise InputError(f"{folder}: the tokenizer gives ids up to {largest}, and vocab_size of config.json is "
                             f"{vocabulary}; the two belong to different models")

    def _frame(self) -> tuple[Frame, str, str]:
        """The frame and the prefixes of user and reply, cut out of a rendered conversation.

        Raises InputError if the template does not print the contents of all turns, or if its generation prompt is not
        the beginning of an assistant's turn, where the model says Yes or No.
        """
        turns = [{"role": role, "content": SAMPLE} for role in ("user", "assistant", "user")]
        prompt = self.render(turns[:1])
        conversation = self.render(turns)
        if prompt.count(SAMPLE) != 1 or conversation.count(SAMPLE) != 3:
            raise InputError(f"{self.source}: the chat template does not print unchanged what user and assistant say")

        # A blank before what user and assistant say (Llama 2) is part of their first words. A template may also put
        # white space before an assistant's words that its generation prompt leaves out; a newline belongs to the frame.
        opening, header = prompt.split(SAMPLE)
        _, before_reply, reopening, last_header = conversation.split(SAMPLE)
        added = before_reply.removeprefix(header)
        if not conversation.startswith(prompt) or not re.fullmatch(r"\n*| ", added):
            raise InputError(f"{self.source}: the chat template asks for a reply by {header!r:.80}, which is not how "
                             f"the assistant's turn begins in a conversation, {before_reply!r:.80}")
        if re.search(f"(?s)<{THOUGHT}(?!.*</\\1>)", header):               # opened and not closed
            raise InputError(f"{self.source}: the chat template asks for a thought by {header!r:.80}; PECAN needs one "
                             "that asks for the reply, Yes or No")
        reply_prefix = " " if added == " " else ""
        user_prefix = " " if opening.endswith(" ") and reopening.endswith(" ") else ""

        texts = [opening.removesuffix(user_prefix), before_reply.removesuffix(reply_prefix),
                 reopening.removesuffix(user_prefix), last_header]
        frame = self._around_contents(texts)

        # The pieces of a prompt are encoded one by one, as is a reply. Together they must have the ids of the whole.
        for count, word in (1, "3"), (3, "Yes"):
            whole = texts[0]
            ids = [*frame.open]
            for prefix, text, piece in zip((user_prefix, reply_prefix, user_prefix)[:count], texts[1:], frame[1:]):
                whole += prefix + word + text
                ids += self._ids(prefix + word) + piece
            if self.special.encode(whole, add_special_tokens=False).ids != ids:
                raise InputError(f"{self.source}: the ids of the chat template depend on what stands between its "
                                 f"tokens, as in {whole!r:.80}")
        return frame, user_prefix, reply_prefix

    def _around_contents(self, texts: list[str]) -> Frame:
        """The ids of these texts in a conversation that has contents between them."""
        frame = Frame([], [], [], [])
        text = CONTENT.join(texts)
        encoding = self.special.encode(text, add_special_tokens=False)
        for token, (start, end) in zip(encoding.ids, encoding.offsets):
            if CONTENT not in text[start:end]:              # several tokens may share the character of a content
                frame[text[:start].count(CONTENT)].append(token)
        return frame

    def _control_tokens(self) -> dict[int, AddedToken]:
        """The tokens that no text may smuggle in: special ones, and added tokens that the chat template prints.

        Other added tokens stay words in a document. So do a template's plain words, such as "user", and its signs.
        """
        framed = {token for ids in self.frame for token in ids}

        def printed(i, token):
            """Does the template print it, and does it mix letters and signs, as <x> does?"""
            return (i in framed or token.content in self.template) and re.search(r"\w\W|\W\w", token.content)
        return {i: token for i, token in self.special.get_added_tokens_decoder().items()
                if token.special or printed(i, token)}

    def _closing(self, control) -> tuple[int, ...]:
        """The token that closes an assistant's turn, if a control token does so; white space may stand before it."""
        for token in self.frame.reopen:
            if token in control:
                return (token,)
            if self.decode([token]).strip():
                break
        return ()

    def encode(self, text: str) -> list[int]:
        """Ids of a segment of a prompt, without an added BOS or blank; names of special tokens are plain text.

        Do not change the list: the next call may return the same one.
        """
        return self._kept_ids(text) if len(text) < KEPT_LENGTH else self._ids(text)

    def _ids(self, text: str) -> list[int]:
        return self.plain.encode(text, add_special_tokens=False).ids

    @property
    def bos(self) -> list[int]:
        """The token that begins a text; [] if the checkpoint has none."""
        name = self.special_names.get("bos_token")
        return [self.special.token_to_id(name)] if name else []

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens left out, and bytes at the end that begin a character and do not complete it.

        A reply may be cut there; the decoder would replace the whole run of bytes before the cut.
        """
        names = "".join(self.special.id_to_token(token) or "" for token in ids[-3:])
        last_bytes = re.search("(<0x[0-9A-F]{2}>)*$", names)[0]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(bytes.fromhex(re.sub("<0x|>", "", last_bytes)))
        waiting, _ = decoder.getstate()                     # bytes of a character that is not complete
        return self._decode(ids[:len(ids) - len(waiting)])

    def _decode(self, ids: list[int]) -> str:
        return self.special.decode(ids, skip_special_tokens=True)

    def reply(self, ids: list[int]) -> str:
        """What a model says in `ids`, without a thought."""
        return without_thought(self.decode(ids)).lstrip()

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

    def user(self, text: str) -> list[int]:
        """Ids of what a user says, or of its beginning."""
        return self.encode(self.user_prefix + text)

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
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self.special_names)


# --- the vocabulary -------------------------------------------------------------------------------------------------

SPACE = "▁"
# Llama 2's: blanks and bytes are spelled out. The blank before a text is no part of it.
DECODER = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                             decoders.Strip(" ", 1, 0)])
QWEN2_WORD = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")

# The classes of transformers that take only vocabulary and merges from a file, and their default tokens. Any other
# class may have rules of its own, too, so it is refused.
CLASSES = {"LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
           "Qwen2Tokenizer": dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
           "GPT2Tokenizer": dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")}
WITHOUT_RULES = "", "PreTrainedTokenizer", "TokenizersBackend"           # no class, or one that takes the whole file


def _load(folder: Path) -> tuple[Path, dict, dict, tokenizers.Tokenizer]:
    """The file of the vocabulary, the settings, the special tokens by name, and the tokenizer."""
    path = folder / "tokenizer.json"
    if not path.exists():
        path = folder / "tokenizer.model"
    place = folder / "tokenizer_config.json"
    settings = read_json(place)
    if "added_tokens_decoder" not in settings:                                       # older folders
        older = read_if_there(folder / "special_tokens_map.json")
        if path.suffix == ".model" or _has_list(settings):
            older.pop("additional_special_tokens", None)            # transformers takes the other file's tokens instead
        settings |= older

    with reading(path, "not a readable tokenizer"):
        raw = read_json(path) if path.suffix == ".json" else _of_sentencepiece(path)
        own = [(path, token["id"], token) for token in raw["added_tokens"]]
        symbols = [token["content"] for token in raw["added_tokens"] if not token["special"]]
        if path.suffix == ".model" and symbols and _has_list(settings):
            raise InputError(f"{path}: transformers drops its user-defined symbol {symbols[0]!r}, because {place.name} "
                             "lists extra tokens; give a tokenizer.json")

        name = _class(path, settings, raw)
        defaults = CLASSES.get("LlamaTokenizer" if path.suffix == ".model" else name, {})
        settings = {key: value for key, value in (defaults | settings).items() if value is not None}
        check_implemented(place, settings, {"split_special_tokens": False})      # or the template's would be plain text
        special = _special_tokens(place, settings)
        if name in CLASSES and path.suffix == ".json":
            raw["added_tokens"] = []                        # some of them may be missing in added_tokens_decoder
        tokenizer = _tokenizer(raw, name, settings)
    _add_tokens(tokenizer, folder, own, settings, [*special.values()])
    if name == "Qwen2Tokenizer":                            # adds them a second time, without flags such as rstrip
        tokenizer.add_tokens([AddedToken(token.content, special=True) for token in special.values()])
    return path, settings, special, tokenizer


def _class(path: Path, settings: dict, raw: dict) -> str:
    """The class of transformers whose rules count. InputError if they are not implemented."""
    config = read_if_there(path.parent / "config.json")
    name = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    name = {"qwen2": "Qwen2Tokenizer", "mistral": ""}.get(config.get("model_type"), name)

    # The vocabulary of another kind (Llama 3's files, too, name LlamaTokenizer): the file's own rules count.
    byte_level = "ByteLevel" in json.dumps([raw.get("pre_tokenizer"), raw.get("decoder")])
    if name == "LlamaTokenizer" and byte_level or "merges" not in raw["model"]:
        return ""

    classes = CLASSES if path.suffix == ".json" else ["LlamaTokenizer"]
    if name not in (*classes, *WITHOUT_RULES):
        raise InputError(f"{path}: tokenizer_class {name!r:.60} is not implemented; if the file holds its rules, "
                         "write 'PreTrainedTokenizerFast' there")
    return name


def _tokenizer(raw: dict, name: str, settings: dict) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json by the rules of the class `name`, without tokens that other files add."""
    # A training run may have left truncation and padding in the file. Here a text stays whole.
    raw = raw | {"truncation": None, "padding": None}
    if name not in CLASSES:
        return tokenizers.Tokenizer.from_str(json.dumps(raw, allow_nan=False))

    llama = name == "LlamaTokenizer"
    model = {key: raw["model"][key] for key in ("vocab", "merges")}
    raw |= {"model": {"type": "BPE", "fuse_unk": llama, "byte_fallback": llama} | model}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(raw, allow_nan=False))

    blank = settings.get("add_prefix_space", llama)
    tokenizer.normalizer = normalizers.NFC() if name == "Qwen2Tokenizer" else None
    tokenizer.decoder = DECODER if llama else decoders.ByteLevel()
    if llama:
        # A blank goes before a text, and with `legacy` also before what follows a special token.
        scheme = "never" if not blank else "always" if settings.get("legacy") else "first"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    elif name == "GPT2Tokenizer":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(blank)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(QWEN2_WORD), "isolated"),
            pre_tokenizers.ByteLevel(blank, use_regex=False)])
    return tokenizer


def _of_sentencepiece(path: Path) -> dict:
    """The content of a tokenizer.json for a tokenizer.model.

    It is Llama 2's BPE: of all neighbours that can merge into a token, those merge first whose token comes first.
    """
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    vocabulary = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    special = [token for token, i in vocabulary.items() if model.is_unknown(i) or model.is_control(i)]
    has_bytes = any(map(model.is_byte, vocabulary.values()))

    merges = []
    symbols = []                                            # the user's own: no tokens merge into them
    for token, i in vocabulary.items():
        cuts = [(token[:n], token[n:]) for n in range(1, len(token))]
        known = [cut for cut in cuts if vocabulary.keys() >= {*cut}]
        merges += known
        if cuts and not known and i in model.encode(token) and not model.is_byte(i):
            symbols.append(token)

    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=model.id_to_piece(model.unk_id()),
                                                fuse_unk=True, byte_fallback=has_bytes))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = DECODER
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in symbols])
    tokenizer.add_special_tokens(special)
    if any(" " in token for token in vocabulary) or tokenizer.encode(SPACE + SAMPLE).ids != model.encode(SAMPLE):
        raise InputError(f"{path}: not a BPE like Llama 2's; give a tokenizer.json")
    return json.loads(tokenizer.to_str())


# --- the tokens that other files add --------------------------------------------------------------------------------

NAMES = "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
EXTRA = "extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens"
TOKENS = Rule((list, dict), "a list of tokens")


def _special_tokens(path: Path, settings: dict) -> dict:
    """The special tokens (AddedToken), with the names by which a template may print them."""
    given = {key: settings.get(key) or {} for key in EXTRA}
    check_values(given, dict.fromkeys(EXTRA, TOKENS), f"{path}: ")
    named = {name: settings[name] for name in NAMES if name in settings}
    named |= {name: token for name, token in settings.items() if name.endswith("_token") and isinstance(token, str)}

    # transformers 4 lists more tokens as additional_special_tokens, or names them in extra_special_tokens; version 5
    # lists them as extra_special_tokens, or names them in model_specific_special_tokens.
    listed = []
    for tokens in given.values():
        if isinstance(tokens, dict):
            named |= tokens
        else:
            listed = listed or tokens
    return {str(name): _token(path, token, special=True) for name, token in (named | dict(enumerate(listed))).items()}


def _has_list(settings: dict) -> bool:
    """Whether a list (or null, which counts as one) of extra tokens is given."""
    return any(key in settings and not isinstance(settings[key], dict) for key in EXTRA)


def _token(path: Path, token: str | dict, **flags) -> AddedToken:
    """A token as the files give it: a text, or an object with the text and flags."""
    given = token if isinstance(token, dict) else {"content": token}
    check_values(given, {"content": TEXT}, f"{path}: a token's ")
    with reading(path, f"the flags of token {given['content']!r} must be true or false"):
        return AddedToken(**{key: value for key, value in given.items() if key not in ("__type", "id")} | flags)


def _add_tokens(tokenizer: tokenizers.Tokenizer, folder: Path, own: list, settings: dict, special: list[AddedToken]):
    """Add tokens as transformers adds them. InputError if one does not get the id that a file gives it."""
    added = own
    place = folder / "added_tokens.json"
    if "added_tokens_decoder" in settings:
        place = folder / "tokenizer_config.json"
        with reading(place, "added_tokens_decoder must give a token for each id"):
            added = [(place, int(i), token) for i, token in settings["added_tokens_decoder"].items()]
    elif place.exists():                                                                   # older folders
        with reading(place, "must give an id for each token"):
            added = [(place, int(i), token) for token, i in read_json(place).items()] + own

    for place, i, given in sorted(added, key=lambda entry: entry[1]):
        token = _token(place, given)
        token.special = token.special or any(token.content == other.content for other in special)
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != i:
            raise InputError(f"{place}: token {token.content!r} should have the id {i}, but gets "
                             f"{tokenizer.token_to_id(token.content)}")

    # Special tokens that the vocabulary lacks so far come last.
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    tokenizer.add_tokens([token for token in special if token.content not in known])


def _without_blanks(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy of the tokenizer that adds no blank before a text, because a segment may stand anywhere in a prompt."""
    raw = re.sub('"prepend_scheme":"[a-z]+"', '"prepend_scheme":"never"', tokenizer.to_str())
    raw = raw.replace('"add_prefix_space":true', '"add_prefix_space":false').replace('"prepend":"▁"', '"prepend":""')
    return tokenizers.Tokenizer.from_str(raw)


def _read_as_text(tokenizer: tokenizers.Tokenizer, control: list[AddedToken], path: Path):
    """Let the tokenizer read the names of these tokens as plain text.

    Raises InputError if it also makes such a token from its name, because the vocabulary has that token.
    """
    tokenizer.add_tokens([AddedToken(token.content, special=True) for token in control])
    tokenizer.encode_special_tokens = True
    for token in control:
        if token.single_word:
            raise InputError(f"{path}: special token {token.content!r} is a single_word, which is not implemented")
        ids = tokenizer.encode(token.content, add_special_tokens=False).ids
        unknown = getattr(tokenizer.model, "unk_token", None)                               # any text may become it
        if tokenizer.token_to_id(token.content) in ids and token.content != unknown:
            raise InputError(f"{path}: {token.content} in a document's text would become that special token, because "
                             "the vocabulary itself has it; use a tokenizer.json without it there")


# --- the chat template ----------------------------------------------------------------------------------------------

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
