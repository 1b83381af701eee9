"""A checkpoint's tokenizer and chat template.

The file is the truth. tokenizer.json is what a model's authors ship, so we use it as it stands, whatever class
tokenizer_config.json names. (transformers 5.23 rebuilds some classes from vocabulary and merges; where that gives other
ids, we follow the file.) tokenizer_config.json names the special tokens, and lists added tokens with their ids, which
are checked. A folder with a tokenizer.model alone gets Llama 2's rules, as in transformers.

The chat template is used as it stands, too. From a rendered conversation we cut out the ids around its contents: the
frame. Frame and contents are then encoded one by one, so words of PECAN must get the ids that they have in the whole.

Special tokens are recognised in the template, never in a document: a `<|eot_id|>` in a document stays plain text.
"""
import datetime
import itertools
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jinja2.sandbox
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from core.files import InputError, Rule, check_values, read_json, reading
from model.checkpoint import check_implemented

CONTENT = "\ue000"                           # a private-use character, which no token joins to its neighbours
# Stands for a turn's content, with all that a template or a vocabulary might change: blanks, capitals, accents.
SAMPLE = "a  b\n\tCDs, ½ ﬁ é e\u0301 東京 👍🏽"
# How PECAN's user turns begin and end (Tables A1 and A2). A node ends the first turn of a search, in whatever sign.
USER = "Summary directly.", "Given can.", "Can Tom", "Can 3", 'Can "it"', "Can it?)"
TODAY = datetime.datetime(2024, 7, 26)       # the date every template prints: a prompt must not change overnight
THOUGHT = "<think>", "</think>"              # the marks of a thought


def without_thought(reply: str) -> str:
    """What a model says after its thought, which becomes blanks, so that each character keeps its index.

    Only a reply that begins with <think> has a thought. If it does not end, it takes all of the reply.
    """
    return re.sub(r"(?s)\A\s*<think>.*?(</think>|\Z)", lambda thought: " " * len(thought[0]), reply)


class Frame(NamedTuple):
    """Ids of a chat template around what is said in a conversation. Each is named by what follows it.

    Prompt of a first reply:  before_user USER before_reply
    Prompt of a second:       before_user USER before_given_reply REPLY before_second_user USER before_reply

    Qwen3 asks for a reply with an empty thought, which a reply that was given does not have before it.
    """
    before_user: list[int]
    before_given_reply: list[int]
    before_second_user: list[int]
    before_reply: list[int]


class Tokenizer:
    """Encode, decode and frame chat turns for the checkpoint in `folder`.

    Attributes: `special` recognises special tokens, as the template needs it; `plain` reads their names as text, as a
    document needs it. `user_prefix` and `reply_prefix`, what comes before the first character of a user's and an
    assistant's turn ("" or a blank); `closing`, the token that closes an assistant's turn, so that it ends a reply.

    Raises InputError if a file is missing or broken, if the template cannot frame a conversation, if a document's text
    could become a special token, or if an id is not below `vocabulary`, the size of the model's vocabulary.
    """

    def __init__(self, folder: str | Path, vocabulary: int | None = None):
        folder = Path(folder)
        with reading(folder, "its tokenizer cannot be used"):
            settings, self.special_names, self.special = _load(folder)
            self.source, self.template = _template(folder, settings)
            self.plain = _without_blanks(self.special)
            self._kept_ids = lru_cache(65_536)(self._ids)
            self._silent = {i for i, token in self.special.get_added_tokens_decoder().items()
                            if token.special and token.content not in THOUGHT}              # they have no text
            self._unknown = self.plain.token_to_id(getattr(self.plain.model, "unk_token", None) or "")
            self._check_joints(self._find_frame())
            control = self._control_tokens()
            self.plain.add_special_tokens([*control.values()])
            self.plain.encode_special_tokens = True
            for i, name in control.items():
                if i in self._ids(name) and i != self._unknown:                        # any text may become that one
                    raise InputError(f"{folder}: {name} in a document's text would become that special token, because "
                                     "the vocabulary itself has it; use a tokenizer.json without it there")
            self.closing = tuple(token for token in self.frame.before_second_user if token in control)[:1]
            if self.first("Yes") == self.first("No"):
                raise InputError(f"{folder}: Yes and No begin with the same token after the chat template's header")

        # A control token that no prompt contains needs no row in the embeddings.
        largest = max({*self.plain.get_vocab().values()} - control.keys() | {*itertools.chain(*self.frame)})
        if vocabulary is not None and largest >= vocabulary:
            raise InputError(f"{folder}: the tokenizer gives ids up to {largest}, and vocab_size of config.json is "
                             f"{vocabulary}; the two belong to different models")

    def _control_tokens(self) -> dict[int, str]:
        """The tokens that no text may smuggle in: special ones, and others that the template prints.

        Other added tokens stay words in a document. So do the template's plain words, such as "user", which do not mix
        letters and signs, as <x>.
        """
        framed = {*itertools.chain(*self.frame)}
        return {i: token.content for i, token in self.special.get_added_tokens_decoder().items()
                if token.special or token.content in self.special_names.values()
                or re.search(r"\w\W|\W\w", token.content) and (i in framed or token.content in self.template)}

    def _find_frame(self) -> list[str]:
        """Cut `frame`, `user_prefix` and `reply_prefix` out of a rendered conversation. Returns the frame's texts."""
        turns = [{"role": role, "content": SAMPLE} for role in ("user", "assistant", "user")]
        with reading(self.source, "the chat template does not print unchanged what user and assistant say"):
            first = self.render(turns[:1]).split(SAMPLE)
            opening, given, reopening, asking = self.render(turns).split(SAMPLE)

        # A blank before what user and assistant say (Llama 2) is part of their first words.
        self.user_prefix = " " if opening.endswith(" ") and reopening.endswith(" ") else ""
        self.reply_prefix = " " if given == asking + " " else ""

        # A reply is asked for as it is given, or with an empty thought before it.
        given = given.removesuffix(self.reply_prefix)
        if first != [opening, asking] or not re.fullmatch(rf"{re.escape(given)}(<think>\s*</think>\s*)?", asking):
            raise InputError(f"{self.source}: the chat template asks for a reply by {first[-1]!r:.80}, which is not "
                             f"how the assistant's turn begins in a conversation, {given!r:.80}")

        texts = [opening.removesuffix(self.user_prefix), given, reopening.removesuffix(self.user_prefix), asking]
        self.frame = Frame(*self._around_contents(texts))
        return texts

    def _check_joints(self, texts: list[str]):
        """InputError if a token joins the frame, whose texts are given, to what PECAN says."""
        for user, reply in itertools.product(USER, ("Yes", "No")):
            contents = [self.user_prefix + user, self.reply_prefix + reply, self.user_prefix + user]
            whole = texts[0]
            ids = [*self.frame.before_user]
            for content, text, piece in zip(contents, texts[1:], self.frame[1:]):
                whole += content + text
                ids += self._ids(content) + piece
            if self.special.encode(whole, add_special_tokens=False).ids != ids:
                raise InputError(f"{self.source}: a token joins the chat template to what PECAN says in {whole!r:.80}; "
                                 "take a checkpoint whose template keeps them apart, by special tokens or blanks")

    def _around_contents(self, texts: list[str]) -> list[list[int]]:
        """The ids of each of these texts in a conversation that has contents between them."""
        pieces = [[] for _ in texts]
        text = CONTENT.join(texts)
        encoding = self.special.encode(text, add_special_tokens=False)
        for token, (start, end) in zip(encoding.ids, encoding.offsets):
            if CONTENT not in text[start:end]:              # several tokens may share the character of a content
                pieces[text[:start].count(CONTENT)].append(token)
        return pieces

    def encode(self, text: str) -> list[int]:
        """Ids of a segment of a prompt, without an added BOS or blank; names of special tokens are plain text.

        Nodes are encoded for every query, so their ids are kept, but for whole books. Do not change the list.
        """
        return self._kept_ids(text) if len(text) < 10_000 else self._ids(text)

    def _ids(self, text: str) -> list[int]:
        return self.plain.encode(text, add_special_tokens=False).ids

    @property
    def bos(self) -> list[int]:
        """The token that begins a text; [] if the checkpoint has none."""
        name = self.special_names.get("bos_token")
        return [self.special.token_to_id(name)] if name else []

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, as `spans` gives it."""
        return self.spans(ids)[0]

    def reply(self, ids: list[int]) -> str:
        """What a model says in `ids`, without a thought."""
        return without_thought(self.decode(ids)).lstrip()

    def thinking(self, ids: list[int]) -> bool:
        """Whether a reply was cut inside the thought that begins it, so that it says nothing yet."""
        said = self.decode(ids).lstrip()
        return said.startswith("<think>") and "</think>" not in said

    def spans(self, ids: list[int]) -> tuple[str, list[tuple[int, int]]]:
        """The text of `ids`, and for every token the characters (start, end) that it is a part of.

        Tokens that make characters only together have one span. Special tokens have no text, and so an empty span. If
        `ids` end inside a character, the text ends before it.
        """
        text = ""
        spans = [(0, 0)] * len(ids)
        parts = []                                          # indices of tokens that are not yet whole characters

        for n, token in enumerate(ids):
            if token not in self._silent:
                if not parts:
                    # A decoder may drop the blank that begins a text, and we keep it: each stream begins with a word.
                    stream = decoders.DecodeStream(self.encode("Yes"), skip_special_tokens=False)
                parts.append(n)
                piece = stream.step(self.special, token)    # None, as long as a character is not whole
                if piece:
                    for part in parts:
                        spans[part] = (len(text), len(text) + len(piece))
                    text += piece
                    parts = []
        return text, spans

    def unknown(self, text: str) -> float:
        """The share of a text's tokens that stand for something the vocabulary lacks."""
        ids = self.encode(text)
        return ids.count(self._unknown) / max(1, len(ids))

    def user(self, text: str) -> list[int]:
        """Ids of what a user says, or of its beginning."""
        return self.encode(self.user_prefix + text)

    def first(self, word: str) -> int:
        """The first token of an assistant's turn that says `word`."""
        return self.encode(self.reply_prefix + word)[0]

    def render(self, messages: list[dict]) -> str:
        """The checkpoint's own template over `messages` (role, content), up to the start of the assistant's turn."""
        def refuse(message):
            raise ValueError(message)

        # The functions and white space rules that transformers gives to templates.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals |= {"raise_exception": refuse, "strftime_now": TODAY.strftime}
        with reading(self.source, "the chat template cannot be rendered"):
            return environment.from_string(self.template).render(
                messages=messages, add_generation_prompt=True, enable_thinking=False, tools=None, documents=None,
                **self.special_names)


# --- the vocabulary -------------------------------------------------------------------------------------------------

KIND = Rule((str,), "BPE or WordLevel", ("BPE", "WordLevel").__contains__)


def _load(folder: Path) -> tuple:
    """The settings, the special tokens by name, and the tokenizer."""
    config = folder / "tokenizer_config.json"
    settings = {key: value for key, value in read_json(config).items() if value is not None}
    # The first would spell out the template's special tokens; the second cuts words otherwise than the file does.
    check_implemented(config, settings, {"split_special_tokens": False, "fix_mistral_regex": False})
    special = {name: token["content"] if isinstance(token, dict) else token for name, token in settings.items()
               if name.endswith("_token") and not isinstance(token, bool)}

    path = folder / "tokenizer.json"
    if path.exists():
        with reading(path, "not a readable tokenizer"):
            # A training run may have left truncation and padding in the file. Here a text stays whole.
            raw = read_json(path) | {"truncation": None, "padding": None}
            check_values(raw["model"], {"type": KIND}, f"{path}: model: ")
            check_implemented(path, raw["model"], {"dropout": 0})
            for token in raw["added_tokens"]:
                token["normalized"] &= not token["special"]               # or Llama 2's </s> needs a blank before it
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(raw))
    else:
        tokenizer = _of_sentencepiece(folder / "tokenizer.model", settings)

    # A tokenizer.json may be complete without a list of added tokens, but not in an old folder.
    old = any((folder / name).exists() for name in ("added_tokens.json", "special_tokens_map.json"))
    if "added_tokens_decoder" not in settings and (old or not path.exists()):
        raise InputError(f"{config}: expected added_tokens_decoder, which transformers has written since 4.34")
    with reading(config, "added_tokens_decoder must give an id and a text for each token"):
        added = {int(i): AddedToken(**token) for i, token in settings.get("added_tokens_decoder", {}).items()}

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for i, token in sorted(added.items()):
        name = token.content
        tokenizer.add_tokens([token] if name not in known else [])
        known.add(name)
        if tokenizer.token_to_id(name) != i:
            raise InputError(f"{config}: added token {name!r} should get id {i}, not {tokenizer.token_to_id(name)}")
    tokenizer.add_special_tokens([name for name in special.values() if name not in known])
    return settings, special, tokenizer


def _of_sentencepiece(path: Path, settings: dict) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.model.

    It is Llama 2's BPE: of all neighbours that can merge into a token, those merge first whose token comes first. A
    blank goes before a text, and with `legacy` also before what follows a special token.
    """
    with reading(path, "not a readable tokenizer", "; give a tokenizer.json"):
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    vocabulary = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    merges = [(token[:n], token[n:]) for token in vocabulary for n in range(1, len(token))
              if vocabulary.keys() >= {token[:n], token[n:]}]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=model.id_to_piece(model.unk_id()),
                                                fuse_unk=True, byte_fallback=True))
    scheme = "never" if settings.get("add_prefix_space") is False else "always" if settings.get("legacy") else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])

    # Special tokens, and the user's own symbols, into which no tokens merge.
    merged = set(map("".join, merges))
    for token, i in vocabulary.items():
        special = model.is_unknown(i) or model.is_control(i)
        if special or len(token) > 1 and token not in merged and not model.is_byte(i):
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])
    if tokenizer.encode(" " + SAMPLE).ids != model.encode(SAMPLE):
        raise InputError(f"{path}: not a BPE like Llama 2's; give a tokenizer.json")
    return tokenizer


def _without_blanks(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy of the tokenizer that adds no blank before a text, because a segment may stand anywhere in a prompt."""
    raw = re.sub('"prepend_scheme":"[a-z]+"', '"prepend_scheme":"never"', tokenizer.to_str())
    raw = raw.replace('"add_prefix_space":true', '"add_prefix_space":false').replace('"prepend":"▁"', '"prepend":""')
    return tokenizers.Tokenizer.from_str(raw)


# --- the chat template ----------------------------------------------------------------------------------------------

def _template(folder: Path, settings: dict) -> tuple[Path, str]:
    """The file that holds the chat template, and the template's text; InputError if there is none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        with reading(path):
            return path, path.read_text("utf-8")

    path = folder / "tokenizer_config.json"
    template = settings.get("chat_template")
    if not isinstance(template, str):
        raise InputError(f"{path}: expected chat_template, a text; PECAN asks in turns, so use a chat checkpoint")
    return path, template
