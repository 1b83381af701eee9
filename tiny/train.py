"""Train the embedded model from scratch (60 to 90 minutes on two CPU cores).

    python -m tiny.train
    python -m tiny.train --output other --seed 1 --tokens 20e6

It runs on the first device available and writes a checkpoint folder (for `--model`), apart from the shipped one. The
folder also holds training.safetensors, from which the same command goes on after an interruption.
"""
import json
import random
import re
import sys
import time
from pathlib import Path

from support.command import make_parser, parse_options, user_errors

import tokenizers
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import pecan
from llama import Llama
from support.checkpoint import choose_device, read_config, save_checkpoint
from support.tokenizer import Tokenizer
from tiny import world as W
from tiny.lesson import Lesson, collate
from tiny.lessons import Teacher
from tiny.start import structured_start

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
    texts = [*pecan.SUMMARISE, *pecan.ASK, pecan.ANSWER, *W.FILLERS, *W.NAMES, *W.VALUES, *sum(W.VALUES.values(), []),
             "What Who is was and 's ? . user assistant Yes No \n\n \n "]
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
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return len(vocabulary)


def shape(vocabulary: int) -> dict:
    """config.json of the embedded model."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": 128,
            "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
            "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True, "attention_bias": False,
            "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}


# --- training -------------------------------------------------------------------------------------------------------

# The curriculum begins with stages of drill, each harder than the one before: options of Teacher.drill. In the next
# stages windows of so many passages are listed as well. After the stages, all kinds of lessons are mixed.
DRILLS = [dict(names=16, relations=1, facts=8, tasks=10),
          dict(relations=1, facts=8, tasks=10),
          dict(relations=3, facts=10, absent=0.2),
          dict(absent=0.3),
          dict(absent=0.2, hops=0.5)]
LISTINGS = [1, 2]
STAGES = len(DRILLS) + len(LISTINGS)

# A stage ends if the share of right answers is above ENOUGH after MIN_STEPS steps, or after MAX_STEPS in any case.
ENOUGH = 0.95
MIN_STEPS = 30
MAX_STEPS = 600


class Training:
    """A model in training, its optimizers and its place in the curriculum.

    All of it is in training.safetensors. `at` counts the steps ("step"), the tokens ("done"), the stages ("drill") and
    the steps of this stage ("since"). `right` is the running share of right targets, by kind of lesson.
    """

    def __init__(self, folder: Path, seed: int, tokens: float, rate: float = 2e-3):
        self.folder = folder
        self.seed = seed
        self.tokens = tokens
        self.rate = rate

        # The files of the checkpoint, without the weights.
        self.raw = shape(write_tokenizer(folder))
        (folder / "config.json").write_text(json.dumps(self.raw, indent=2) + "\n")
        (folder / "pecan.json").write_bytes((Path(__file__).parent / "pecan.json").read_bytes())

        config = read_config(folder)
        self.device, _ = choose_device()
        self.weights = {}
        for name, weight in structured_start(config, seed).items():
            self.weights[name] = weight.to(self.device).requires_grad_()
        self.model = Llama(config, self.weights)
        self.teacher = Teacher(Tokenizer(folder), config.eos[0])

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

        partial = self.folder / "training.partial"
        save_file(state, partial, metadata={"at": json.dumps(self.at), "right": json.dumps(self.right)})
        partial.replace(self.folder / "training.safetensors")
        save_checkpoint(self.folder, self.raw, self.weights)

    def restore(self):
        """Read what save wrote."""
        path = self.folder / "training.safetensors"
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        self.at = json.loads(metadata["at"])
        self.right = json.loads(metadata["right"])

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

    def lessons(self, rng) -> dict[str, list[Lesson]]:
        """The lessons of one step, by kind; all kinds if the stages are over."""
        teacher = self.teacher
        stage = self.at["drill"]
        if stage < len(DRILLS):
            return {"drill": [teacher.drill(rng, **DRILLS[stage]) for _ in range(32)]}
        if stage < STAGES:
            size = LISTINGS[stage - len(DRILLS)]
            return {"drill": [teacher.drill(rng, absent=0.3) for _ in range(8)],
                    "listing": [teacher.listing(rng, size) for _ in range(32)]}

        room = rng.choice((160, 220, 300, 400, 470))              # short searches teach more, long ones are real
        return {"drill": [teacher.drill(rng, absent=0.3, hops=0.3) for _ in range(6)],
                "listing": [teacher.listing(rng, rng.choice((3, 5, 7))) for _ in range(6)],
                "summary 2": [teacher.summary(rng, 1) for _ in range(4)],
                "summary 3": [teacher.summary(rng, 2) for _ in range(2)],
                "search": [teacher.search(rng, room) for _ in range(5000 // (room + 60))]}

    def step(self):
        """One step of both optimizers."""
        # Each step has its own seed, so that a resumed run gets the same lessons as one without an interruption.
        rng = random.Random(f"{self.seed} {self.at['step']}")

        # The learning rate rises for 50 steps and falls over the last third of the tokens.
        rise = (self.at["step"] + 1) / 50
        fall = 0.02 + (1 - self.at["done"] / self.tokens) / 0.35
        scale = min(1, rise, fall)

        # The gradients of all kinds of lessons add up; a search counts twice.
        for kind, lessons in self.lessons(rng).items():
            tokens, positions, mask, places, right = collate(lessons, self.device)
            hidden, _ = self.model.forward(tokens, positions, mask)
            logits = self.model.logits(hidden[places])            # [targets, V]
            loss = F.cross_entropy(logits, right)
            (loss * (2 if kind == "search" else 1)).backward()
            self.at["done"] += tokens.numel()
            self.record(kind, logits.argmax(1) == right, right)

        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self.rate * scale
            optimizer.step()
            optimizer.zero_grad()
        self.at["step"] += 1
        self.at["since"] += 1
        self.end_stage()

    def record(self, kind: str, hits: torch.Tensor, right: torch.Tensor):
        """Update the running shares of right targets, verdicts apart from the other ones.

        hits and right are [targets]: whether the model gave the right token, and that token.
        """
        yes = self.teacher.tokenizer.first("Yes")
        no = self.teacher.tokenizer.first("No")
        verdicts = (right == yes) | (right == no)
        for name, chosen in ((kind, ~verdicts), (f"{kind}: verdicts", verdicts)):
            if chosen.any():
                share = hits[chosen].float().mean().item()
                before = self.right.get(name, share)
                self.right[name] = before + 0.05 * (share - before)

    def end_stage(self):
        """Go on to the next stage if this one has done enough."""
        if self.at["drill"] >= STAGES or self.at["since"] <= MIN_STEPS:
            return
        if min(self.right.values()) > ENOUGH or self.at["since"] > MAX_STEPS:
            self.at["drill"] += 1
            self.at["since"] = 0
            self.right = {}


def main(argv=None):
    parser = make_parser("python -m tiny.train", __doc__)
    parser.add_argument("--output", type=Path, default=Path("trained"), help="(default: %(default)s)")
    parser.add_argument("--tokens", type=float, default=34e6, help="tokens to train on")
    parser.add_argument("--seed", type=int, default=0)
    args = parse_options(parser, argv)

    training = Training(args.output, args.seed, args.tokens)
    began = time.time()
    while training.at["done"] < args.tokens:
        training.step()
        if training.at["step"] % 50 == 0:
            shares = "  ".join(f"{kind} {share:.3f}" for kind, share in training.right.items())
            print(f"step {training.at['step']}  {training.at['done'] / 1e6:.1f}M tokens  {time.time() - began:.0f} s  "
                  f"drill {training.at['drill']}  right: {shares}", flush=True)
        if training.at["step"] % 200 == 0:
            training.save()
    training.save()
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
