"""Train the embedded model from scratch (about an hour and a half on a CPU core).

    python -m tiny.train
    python -m tiny.train --output other --seed 1 --tokens 30e6

It runs on the first device available and writes a checkpoint folder (for `--model`). The folder also holds log.jsonl,
a line every 25 steps, and training.safetensors, from which the same command goes on after an interruption.
"""
import json
import random
import re
import sys
import time
from pathlib import Path

from core.command import make_parser, parse_options, user_errors

import tokenizers
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file

import pecan
from core.checkpoint import choose_device, read_config, save_checkpoint
from core.files import append_line, write_file, write_tensors
from core.settings import resolve
from core.tokenizer import Tokenizer
from llama import Llama
from study.world import watch
from support.token_mean import COUNTS
from tiny import world as W
from tiny.curriculum import STAGES, lessons
from tiny.lesson import collate
from tiny.lessons import Teacher
from tiny.start import structured_start
from tiny.world import other_documents

# --- the checkpoint's files -----------------------------------------------------------------------------------------

SPECIALS = ["<unk>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
WORD = r"\n\n|\n|'s|\w+|[^\w\s]"

# In the style of Llama 3's chat template, without a system turn.
TEMPLATE = ("{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
            "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
            "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")


def write_tokenizer(folder: Path) -> int:
    """Write the tokenizer's files; returns the size of the vocabulary.

    Each word of the world, the prompts and the template is one token.
    """
    texts = [*pecan.SUMMARISE, *pecan.ASK, pecan.ANSWER, *W.FILLERS, *W.MENTIONS, *sum(W.VALUES.values(), []),
             *sum(W.WORDINGS.values(), ()), W.POST, *W.QUESTIONS.values(), "In the ? . user assistant Yes No \n\n \n "]
    texts = [re.sub(r"\{\d?\}", " ", text) for text in texts]
    words = sorted({word for text in texts for word in re.findall(WORD, text)})
    vocabulary = {word: id for id, word in enumerate(SPECIALS + words)}

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=SPECIALS[0]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORD), behavior="removed", invert=True)
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##", cleanup=True)      # joins words, not punctuation
    tokenizer.add_special_tokens([tokenizers.AddedToken(s, special=True, normalized=False) for s in SPECIALS])

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": SPECIALS[0], "bos_token": SPECIALS[1],
                "eos_token": SPECIALS[2], "clean_up_tokenization_spaces": True, "chat_template": TEMPLATE}
    write_file(folder / "tokenizer_config.json", json.dumps(settings, indent=2, allow_nan=False) + "\n")
    return len(vocabulary)


def write_counts(folder: Path, tokenizer: Tokenizer, vocabulary: int):
    """Write how often each token comes in the passages of a hundred documents (support/token_mean.py uses it)."""
    rng = random.Random("counts")
    counts = [0] * vocabulary
    for _ in range(100):
        for passage in W.make_world(rng, rng.randint(6, 27)).passages:
            for id in tokenizer.encode(passage):
                counts[id] += 1
    source = "the passages of 100 documents as training draws them"
    write_file(folder / COUNTS, json.dumps({"source": source, "counts": counts}, allow_nan=False) + "\n")


SIZES = {                         # the embedded model, and a searcher or scorer of a third of its size
    "embedded": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
                 "num_key_value_heads": 2},
    "small": {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 3,
              "num_key_value_heads": 1}}


def shape(vocabulary: int, size: str) -> dict:
    """config.json of a model of this size."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, **SIZES[size],
            "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
            "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True, "attention_bias": False,
            "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}


# --- training -------------------------------------------------------------------------------------------------------

# A stage ends after MIN_STEPS steps if its lowest share of right answers is above ENOUGH; drills and hops do not count
# if there are others. It ends after MAX_STEPS in any case.
ENOUGH = 0.9
MIN_STEPS = 30
MAX_STEPS = 200
MIXED_STEPS = 1300                # of the mixed lessons; then come more searches, and longer ones

WATCHED = 5                       # documents whose figures the log gets now and then


class Training:
    """A model in training, its optimizers and its place in the curriculum.

    All of it is in training.safetensors. `at` counts the steps ("step"), the tokens ("done"), the stages ("drill") and
    the steps of this stage ("since"). `right` is the running share of right targets, by kind of lesson.
    """

    def __init__(self, folder: Path, seed: int, tokens: float, size: str = "embedded", rate: float = 2e-3):
        self.folder = folder
        self.seed = seed
        self.tokens = tokens
        self.rate = rate

        # The files of the checkpoint, without the weights.
        self.raw = shape(write_tokenizer(folder), size)
        write_file(folder / "config.json", json.dumps(self.raw, indent=2, allow_nan=False) + "\n")
        (folder / "pecan.json").write_bytes((Path(__file__).parent / "pecan.json").read_bytes())

        config = read_config(folder)
        self.device, _ = choose_device()
        # A processor without instructions for bfloat16 is faster in float32 (2.4 times, measured on AVX-512 alone).
        instructions = {name for name, there in torch.cpu.get_capabilities().items() if there}
        self.bfloat16 = self.device.type != "cpu" or not instructions.isdisjoint({"amx_bf16", "avx512_bf16", "bf16"})
        self.weights = {}
        for name, weight in structured_start(config, seed).items():
            self.weights[name] = weight.to(self.device).requires_grad_()
        self.model = Llama(config, self.weights)
        self.teacher = Teacher(Tokenizer(folder), config.eos[0])
        if not (folder / COUNTS).exists():
            write_counts(folder, self.teacher.tokenizer, config.vocab)

        # Muon trains the matrices of the layers, AdamW the embeddings and the norms.
        self.names = {"muon": [], "adam": []}
        for name, weight in self.weights.items():
            in_layer = weight.ndim == 2 and "embed" not in name
            self.names["muon" if in_layer else "adam"].append(name)
        matrices = [self.weights[name] for name in self.names["muon"]]
        others = [self.weights[name] for name in self.names["adam"]]
        self.optimizers = {
            "muon": torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            "adam": torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)}

        self.at = {"step": 0, "done": 0, "drill": 0, "since": 0}
        self.right: dict[str, float] = {}
        self.losses: dict[str, float] = {}
        if (folder / "training.safetensors").exists():
            self.restore()

    def save(self):
        """Write the model and the state of the training; each file is replaced at once."""
        state = {}
        for kind, optimizer in self.optimizers.items():
            for name in self.names[kind]:
                for key, value in optimizer.state[self.weights[name]].items():
                    if torch.is_tensor(value):
                        state[f"{kind}.{name}.{key}"] = value.contiguous()
        for name, weight in self.weights.items():
            state[f"weight.{name}"] = weight.detach().contiguous()

        metadata = {name: json.dumps(value, allow_nan=False)
                    for name, value in (("at", self.at), ("right", self.right), ("losses", self.losses))}
        write_tensors(self.folder / "training.safetensors", state, metadata)
        save_checkpoint(self.folder, self.raw, self.weights)

    def restore(self):
        """Read what save wrote."""
        path = self.folder / "training.safetensors"
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        self.at = json.loads(metadata["at"])
        self.right = json.loads(metadata["right"])
        self.losses = json.loads(metadata["losses"])

        state = load_file(path, device=str(self.device))
        for kind, optimizer in self.optimizers.items():
            for name in self.names[kind]:
                prefix = f"{kind}.{name}."
                optimizer.state[self.weights[name]] = {
                    key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(state[f"weight.{name}"])
        print(f"going on at step {self.at['step']}")

    def step(self):
        """One step of both optimizers."""
        # Each step has its own seed, so that a resumed run gets the same lessons as one without an interruption.
        rng = random.Random(f"{self.seed} {self.at['step']}")

        # The learning rate rises for 50 steps and falls over the last third of the tokens.
        rise = (self.at["step"] + 1) / 50
        fall = 0.02 + (1 - self.at["done"] / self.tokens) / 0.35
        scale = min(1, rise, fall)

        # The gradients of all kinds of lessons add up; a search counts twice.
        for kind, made in lessons(self.teacher, rng, self.at["drill"]).items():
            tokens, positions, mask, places, right = collate(made, self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                hidden, _ = self.model.forward(tokens, positions, mask)
                logits = self.model.logits(hidden[places])        # [targets, V]
            loss = F.cross_entropy(logits.float(), right)
            (loss * (2 if kind == "search" else 1)).backward()
            self.at["done"] += tokens.numel()
            self.record(kind, loss.item(), logits.argmax(1) == right, right)

        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self.rate * scale
            optimizer.step()
            optimizer.zero_grad()
        self.at["step"] += 1
        self.at["since"] += 1
        self.end_stage()

    def record(self, kind: str, loss: float, hits: torch.Tensor, right: torch.Tensor):
        """Update the running loss, and the running shares of right targets, verdicts apart from the other ones.

        hits and right are [targets]: whether the model gave the right token, and that token.
        """
        before = self.losses.get(kind, loss)
        self.losses[kind] = before + 0.05 * (loss - before)
        yes = self.teacher.tokenizer.first("Yes")
        no = self.teacher.tokenizer.first("No")
        verdicts = (right == yes) | (right == no)
        for name, chosen in ((kind, ~verdicts), (f"{kind}: verdicts", verdicts)):
            if chosen.any():
                share = hits[chosen].float().mean().item()
                before = self.right.get(name, share)
                self.right[name] = before + 0.05 * (share - before)

    @torch.no_grad()
    def figures(self) -> dict:
        """What the bench says about PECAN with the model as it is, on documents of another seed."""
        model = Llama(self.model.config, self.weights, self.teacher.tokenizer, self.folder)
        settings = resolve(self.folder, model.config.max_length)
        return watch(model, other_documents()[:WATCHED], settings)

    def log(self, seconds: float, figures: dict | None = None):
        """Append a line to log.jsonl: where the training is, the running losses and the shares of right targets."""
        rounded = [{kind: round(value, 4) for kind, value in of.items()} for of in (self.losses, self.right)]
        line = self.at | {"seconds": round(seconds), "loss": rounded[0], "right": rounded[1]}
        if figures:
            line["figures"] = figures
        append_line(self.folder / "log.jsonl", json.dumps(line, allow_nan=False))

    def end_stage(self):
        """Go on to the next stage if this one has done enough."""
        stage = self.at["drill"]
        if stage > len(STAGES) or self.at["since"] <= MIN_STEPS:
            return
        graded = {kind: share for kind, share in self.right.items() if "drill" not in kind and "hops" not in kind}
        enough = stage < len(STAGES) and min((graded or self.right).values()) > ENOUGH
        if enough or self.at["since"] > (MAX_STEPS if stage < len(STAGES) else MIXED_STEPS):
            self.at["drill"] += 1
            self.at["since"] = 0
            self.right = {}
            self.losses = {}


def main(argv=None):
    parser = make_parser("python -m tiny.train", __doc__)
    parser.add_argument("--output", type=Path, default=Path("trained"), help="(default: %(default)s)")
    parser.add_argument("--tokens", type=float, default=50e6, help="tokens to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", choices=SIZES, default="embedded", help="(default: %(default)s)")
    args = parse_options(parser, argv)

    training = Training(args.output, args.seed, args.tokens, args.size)
    began = time.time()
    while training.at["done"] < args.tokens:
        training.step()
        if training.at["step"] % 25 == 0:
            training.log(time.time() - began)
        if training.at["step"] % 100 == 0:
            training.save()
        if training.at["step"] % 500 == 0 and training.at["drill"] >= len(STAGES):
            training.log(time.time() - began, training.figures())
    training.save()
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
