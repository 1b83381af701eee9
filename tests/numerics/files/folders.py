"""Small tokenizers in the forms in which checkpoint folders have them, trained here, with published templates; and
changes to folders, which damage them or not."""
import io
import json
from functools import cache, partial
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from safetensors.torch import load_file, save_file

from core.files import InputError
from model.tokenizer import Tokenizer
from pecan import ANSWER, ASK, SUMMARISE

# --- templates ------------------------------------------------------------------------------------------------------

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' +
    date_string + '\n\n<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
ZEPHYR = """{% for message in messages %}
    {% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
    {% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
LLAMA2 = """{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + '[/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""
VICUNA = """{{ bos_token + 'A chat. ' }}{% for message in messages %}
{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}
{%- else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""
QWEN3 = """{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content.split('</think>')[-1].lstrip('\n') +
            '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

# --- vocabularies ---------------------------------------------------------------------------------------------------

# Llama 3's rule for cutting text into words; it keeps "\n\n" together, and ".\n" too. Qwen's cuts between digits.
LLAMA3_WORD = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
QWEN_WORD = LLAMA3_WORD.replace("{1,3}", "")
BASE = "<s>", "</s>", "<unk>"
CHAT = tuple("""<|start_header_id|> <|end_header_id|> <|eot_id|> <|im_start|> <|im_end|> <|user|> <|assistant|>
             """.split())
SPECIALS = BASE + CHAT                                                   # their ids in a byte-level BPE are 0, 1, 2 ..
SIZE = 420                                                               # of each vocabulary, without what is added
NODES = {0: "Tom Kitten bursts his buttons.", 1: "Tabitha has 3 kittens; all of Tabitha's coats are too small."}
QUESTION = "Who bursts his buttons?"
LINES = "".join(f"\n* {text}" for text in NODES.values())
SUMMARY = (SUMMARISE[0] + LINES + SUMMARISE[1],)                         # contents of the turns of the two prompts
SEARCH = (ASK[0] + QUESTION + ASK[1] + LINES, "Yes", ANSWER)
# A character of the last text shares its first bytes with others, so some tokens are two bytes of a character.
CORPUS = [*SUMMARY, *SEARCH, "[INST] Yes [/INST] No Yes No\nYes\nNo", "👍 亀 " * 9] * 4


# --- files and damage -----------------------------------------------------------------------------------------------

def write(folder: Path, name: str, content):
    """Write a text, or a value as JSON."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


def rows_of(table: str) -> list[tuple]:
    """The rows of a table in words, with | between blanks between the cells: a file, often, a change of it or of others
    in JSON, and what follows from it, often words of an error."""
    rows = [line.split(" | ") for line in table.strip().splitlines()]
    return [(name.strip(), json.loads(damage), words.strip()) for name, damage, words in rows]


ABSENT = "absent"


def put(folder: Path, name: str, content):
    """Change a file. A dict changes some of its values or tensors, and ABSENT removes one; a function changes the
    folder; anything else replaces the file, which may be missing."""
    path = folder / name
    if callable(content):
        content(folder)
    elif not isinstance(content, dict):
        write(folder, name, content)
    elif path.suffix == ".safetensors":
        save_file({name: tensor for name, tensor in (load_file(path) | content).items() if tensor != ABSENT}, path)
    else:
        old = json.loads(path.read_text("utf-8")) if path.exists() else {}
        write(folder, name, {key: value for key, value in (old | content).items() if value != ABSENT})


def assert_refused(load, folder: Path, name: str, damage, words: str):
    """Damage a file as `put` does. Loading the folder must then raise an InputError of one line, which begins with the
    folder and matches `words`."""
    put(folder, name, damage)
    with pytest.raises(InputError, match=words) as error:
        load(folder)
    assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)


# --- settings and tokens --------------------------------------------------------------------------------------------

def write_settings(folder: Path, template=CHATML, files=None, model_type="llama", **settings):
    """tokenizer_config.json; config.json, which names the kind of model; and other `files` (name -> content)."""
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
          | settings)
    put(folder, "config.json", {"model_type": model_type})
    for name, content in (files or {}).items():
        write(folder, name, content)


def numbered(names, first: int, **flags) -> dict:
    """Tokens as added_tokens_decoder lists them."""
    common = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    return {str(i): {"content": name} | common | flags for i, name in enumerate(names, first)}


@cache
def trained_bpe(specials: tuple, word: str) -> str:
    """tokenizer.json of a byte-level BPE, with a BOS that is added by default. A training run left it so that it cuts
    and pads texts, which must stay whole."""
    t = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    t.normalizer = tokenizers.normalizers.NFC() if word == QWEN_WORD else None
    t.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(word), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = tokenizers.decoders.ByteLevel()
    t.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    t.train_from_iterator(CORPUS, tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=list(specials), show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    t.enable_truncation(5)
    t.enable_padding(length=4096, pad_token="<unk>")
    return t.to_str()


def write_bpe(folder: Path, template=CHATML, specials=SPECIALS, new=(), word=LLAMA3_WORD, **settings):
    """The folder of a byte-level BPE, with `new` words as added tokens."""
    write(folder, "tokenizer.json", trained_bpe(specials, word))
    edit_added_tokens(folder, new)
    write_settings(folder, template, **{"tokenizer_class": "PreTrainedTokenizerFast"} | settings)


def edit_added_tokens(folder: Path, new=(), **flags):
    """Add words as tokens to tokenizer.json, and change flags of all its added tokens."""
    tokens = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    tokens += [token | {"id": int(i)} for i, token in numbered(new, SIZE, special=False).items()]
    put(folder, "tokenizer.json", {"added_tokens": [token | flags for token in tokens]})


@cache
def trained_sentencepiece(user_defined: tuple, rule: str) -> str:
    """tokenizer.model. Like Llama's it puts a blank before any text, and spells unknown characters in bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(CORPUS).split("\n")), model_writer=model, vocab_size=SIZE, model_type="bpe",
        byte_fallback=True, character_coverage=1.0, remove_extra_whitespaces=False, minloglevel=2,
        normalization_rule_name=rule, user_defined_symbols=list(user_defined))
    return model.getvalue()


def write_sentencepiece(folder: Path, template=CHATML, user_defined=(), rule="identity", **settings):
    """The folder of a sentencepiece model. Chat tokens that it lacks are added by tokenizer_config.json."""
    (folder / "tokenizer.model").write_bytes(trained_sentencepiece(user_defined, rule))
    added = numbered(["<unk>", "<s>", "</s>"], 0) | ({} if user_defined else numbered(CHAT, SIZE))
    write_settings(folder, template, **{"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": added} | settings)


def write_llama(folder: Path, template=LLAMA2, metaspace=False, normalized=False, **settings):
    """tokenizer.json as Llama 2 has it, whose normaliser writes blanks, or with a Metaspace as Mistral 0.3; maybe with
    special tokens that are normalised, too."""
    write_sentencepiece(folder, added_tokens_decoder={})
    t = Tokenizer(folder).special
    t.decoder = tokenizers.decoders.Sequence([t.decoder, tokenizers.decoders.Strip(" ", 1, 0)])    # of a text's start
    (folder / "tokenizer.model").unlink()
    if not metaspace:
        t.pre_tokenizer = None
        t.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("▁"),
                                                        tokenizers.normalizers.Replace(" ", "▁")])
    write(folder, "tokenizer.json", t.to_str())
    edit_added_tokens(folder, normalized=normalized)
    write_settings(folder, template, **{"tokenizer_class": "LlamaTokenizer", "legacy": False, "unk_token": "<unk>"}
                   | settings)


# --- folders --------------------------------------------------------------------------------------------------------

QWEN = {"word": QWEN_WORD, "tokenizer_class": "Qwen2Tokenizer", "bos_token": None}
FOLDERS = {
    "Llama 3": partial(write_bpe, template=LLAMA3),
    "Qwen2.5": partial(write_bpe, model_type="qwen2", new=["<tool_call>", "Kittenish", "<name>"], **QWEN),
    "Qwen3": partial(write_bpe, template=QWEN3, model_type="qwen3", new=["<think>", "</think>"], **QWEN),
    "Llama 2": partial(write_llama, normalized=True),
    "Zephyr": partial(write_llama, template=ZEPHYR, model_type="mistral", legacy=True),
    "Mistral": partial(write_llama, template=MISTRAL, metaspace=True, model_type="mistral",
                       added_tokens_decoder=numbered(["[INST]", "[/INST]"], SIZE)),
    "Vicuna": partial(write_sentencepiece, template=VICUNA),
    "sentencepiece": write_sentencepiece,
    "sentencepiece, legacy": partial(write_sentencepiece, template=LLAMA2, legacy=True),
    "sentencepiece, no blank before a text": partial(
        write_sentencepiece, template=VICUNA.replace("bos_token + ", ""), add_prefix_space=False),
    "sentencepiece with the user's own symbols": partial(write_sentencepiece, user_defined=CHAT),
    "files beside tokenizer_config.json": partial(
        write_bpe, added_tokens_decoder=numbered(["<s>"], 0),
        files={"chat_template.jinja": LLAMA3, "special_tokens_map.json": {"bos_token": "</s>"}}),
    "tokens that tokenizer.json lacks": partial(
        write_bpe, template=ZEPHYR, specials=BASE, cls_token=CHAT[-1], mask_token=None, add_bos_token=True,
        added_tokens_decoder=numbered(CHAT[:-1], SIZE, special=False, normalized=True)),
}
