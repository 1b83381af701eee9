"""Train the embedded model, on the first device available.

    python -m tiny.train
    python -m tiny.train --output other --seed 1 --tokens 30e6
    python -m tiny.train --output longer --start tiny --tokens 50e6

It writes a checkpoint folder (for `--model`). The folder also holds log.jsonl, a line every 25 steps, and training.pt,
from which the same command goes on after an interruption.
"""
import json
import random
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F

import pecan
from core.checkpoint import Config, choose_device, read_config, read_weights, save_checkpoint, tensor_shapes
from core.command import make_parser, parse_options, user_errors
from core.files import append_line, read_json, replacing, write_file
from core.tokenizer import Tokenizer
from llama import Llama
from support.token_mean import COUNTS
from tiny.facts import POST, QUESTIONS, VALUES, WORDINGS
from tiny.lessons import MIXED, Lesson, Teacher, collate, lessons
from tiny.world import FILLERS, MENTIONS, make_world

# --- the checkpoint's files -----------------------------------------------------------------------------------------

SPECIALS = ["<unk>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
WORD = r"\n\n|\n|'s|\w+|[^\w\s]"

# In the style of Llama 3's chat template, without a system turn.
TEMPLATE = ("{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
            "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
            "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")


def write_tokenizer(folder: Path):
    """Write the tokenizer's files. Each word of the world, the prompts and the template is one token."""
    texts = [*pecan.SUMMARISE, *pecan.ASK, pecan.ANSWER, *FILLERS, *MENTIONS, *sum(VALUES.values(), []),
             *sum(WORDINGS.values(), ()), POST, *QUESTIONS.values(), "In the ? . user assistant Yes No \n\n \n "]
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


def write_counts(folder: Path, tokenizer: Tokenizer, vocabulary: int):
    """Write how often each token comes in the passages of a hundred documents (support/token_mean.py uses it)."""
    rng = random.Random("counts")
    counts = [0] * vocabulary
    for _ in range(100):
        for passage in make_world(rng, rng.randint(6, 27)).passages:
            for id in tokenizer.encode(passage):
                counts[id] += 1
    source = "the passages of 100 documents as training draws them"
    write_file(folder / COUNTS, json.dumps({"source": source, "counts": counts}, allow_nan=False) + "\n")


# --- the start ------------------------------------------------------------------------------------------------------

SHARED = 0.5                         # the first coordinate of every embedding
FAST = torch.arange(6)               # the fastest RoPE frequencies; frequency i turns dimensions i and i + K // 2


def structured_start(config: Config, seed: int) -> dict[str, torch.Tensor]:
    """The weights at the start of training, by name.

    From the usual random weights such a model learns to copy, but not whose fact it copies. This start follows "Mimetic
    Initialization of Self-Attention Layers" (Trockman and Kolter 2023, https://arxiv.org/abs/2305.09828): head h of
    layer 0 looks h + 1 tokens back, and the other layers compare contents. Norms are 1. The rest is random with
    variance 1 / D; the matrix that ends an MLP is then scaled by 0.2.
    """
    generator = torch.Generator().manual_seed(seed)
    D, K = config.width, config.head_width

    def normal(*size):
        return torch.randn(size, generator=generator)

    def orthonormal():                                      # [K, D]
        return torch.linalg.qr(normal(D, K))[0].T

    weights = {name: torch.ones(size) if len(size) == 1 else normal(*size) / D ** 0.5
               for name, size in tensor_shapes(config).items()}

    # All embeddings share a constant, from which layer 0 makes queries and keys that do not depend on the token.
    # RMSNorm divides by the root of the mean square, which is (SHARED ** 2 + 1) / D for these embeddings.
    weights["model.embed_tokens.weight"][:, 0] = SHARED
    constant = SHARED * (D / (SHARED ** 2 + 1)) ** 0.5      # after the norm
    turn = config.rope_theta ** (-2 * FAST / K)             # radians per position

    for layer in range(config.layers):
        name = f"model.layers.{layer}."
        weights[f"{name}mlp.down_proj.weight"] *= 0.2
        q, k, v, o = (weights[f"{name}self_attn.{letter}_proj.weight"] for letter in "qkvo")
        for h in range(config.heads):
            g, first = divmod(h, config.heads // config.kv_heads)
            of_q = slice(h * K, (h + 1) * K)
            of_k = slice(g * K, (g + 1) * K)                # of the key/value head that this head shares
            if not first:
                v[of_k] = orthonormal()
                k[of_k] = orthonormal() * (1.1 if layer else 0.05)

            if layer == 0:
                # Keys point in one direction, on the fast frequencies, and queries in the same, turned back by h + 1
                # positions. RoPE turns both by their positions, so that they meet h + 1 tokens apart.
                k[of_k][FAST, 0] = 6 / constant
                q[of_q] = 0.02 * normal(K, D)
                q[of_q][FAST, 0] = 6 / constant * torch.cos((h + 1) * turn)
                q[of_q][FAST + K // 2, 0] = -6 / constant * torch.sin((h + 1) * turn)
                o[:, of_q] = 0.1 * orthonormal().T
            else:
                # W_q = W_k but for a little noise, without the frequencies that would compare positions. W_o W_v is a
                # projection times 0.1: a token takes over a part of what it matches.
                if not first:
                    k[of_k][torch.cat((FAST, FAST + K // 2))] *= 0.1
                q[of_q] = k[of_k] + 0.01 * normal(K, D)
                o[:, of_q] = 0.1 * v[of_k].T
    return weights


# --- training -------------------------------------------------------------------------------------------------------

SINK = 0.1                           # weight of sink_loss, relative to cross entropy
PART = 4                             # lessons that run together; the attention of more does not fit a processor's cache
MEMORY = 0.998                       # the part of the running mean that a step keeps


def sink_loss(a: torch.Tensor) -> torch.Tensor:
    """The cost of attention to tokens other than the first; a [B, T, 1] is the attention to the first.

    In a published Llama a head that finds nothing rests on the first token, which takes a third to a half of all
    attention. In so small a model its attention scatters over the text and drowns the mean over heads.
    """
    return -(a + 0.001).log().mean()


class Training:
    """A model in training, the running mean of its weights and its optimizers; training.pt holds all of it.

    The checkpoint has the mean, because the weights themselves differ much from step to step.
    """

    def __init__(self, folder: Path, seed: int, tokens: float, start: Path | None = None):
        self.folder = folder
        self.seed = seed
        self.tokens = tokens
        self.steps = 0
        self.done = 0                                       # tokens
        self.right: dict[str, list[float]] = {}             # shares of right targets since the last line of the log
        self.pool = ThreadPoolExecutor(torch.get_num_threads())

        # The files of the checkpoint, without the weights. The shape of the model is that of the embedded one.
        write_tokenizer(folder)
        for name in ("config.json", "pecan.json"):
            shutil.copy(Path(__file__).parent / name, folder)
        config = read_config(folder)
        self.teacher = Teacher(Tokenizer(folder, config.vocab), config.eos[0])
        write_counts(folder, self.teacher.tokenizer, config.vocab)

        # With the weights of a checkpoint, training starts where the lessons of all kinds are mixed.
        self.begin = MIXED if start else 0
        self.device, _ = choose_device()
        weights = read_weights(start, config, "cpu", torch.float32) if start else structured_start(config, seed)
        weights = {name: weight.to(self.device).requires_grad_() for name, weight in weights.items()}
        self.model = Llama(config, weights)
        self.mean = {name: weight.detach().clone() for name, weight in weights.items()}

        # Muon trains the matrices of the layers, AdamW the embeddings and the norms.
        matrices = [weight for name, weight in weights.items() if "proj" in name]
        others = [weight for name, weight in weights.items() if "proj" not in name]
        self.optimizers = [torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
                           torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)]
        if (folder / "training.pt").exists():
            self.restore()

    def save(self):
        """Write the checkpoint, and the state of the training."""
        save_checkpoint(self.folder, read_json(self.folder / "config.json"), self.mean)
        with replacing(self.folder / "training.pt") as partial:
            torch.save({"steps": self.steps, "done": self.done, "weights": self.model.weights, "mean": self.mean,
                        "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}, partial)

    @torch.no_grad()
    def restore(self):
        """Read the state that `save` wrote."""
        state = torch.load(self.folder / "training.pt", self.device)
        self.steps, self.done = state["steps"], state["done"]
        for optimizer, of_optimizer in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(of_optimizer)
        for name, weight in self.model.weights.items():
            weight.copy_(state["weights"][name])
        self.mean = state["mean"]

    def gradients(self, kind: str, made: list[Lesson], part: float, mixed: bool) -> list[torch.Tensor]:
        """The gradients of some lessons of one kind; `part` is their share of its lessons in this step."""
        tokens, positions, mask, places, right = (tensor.to(self.device) for tensor in collate(made))
        first = None
        if mixed:
            first = torch.zeros(*tokens.shape, 1, device=self.device)                      # [B, T, 1]
            first[:, 0] = 1
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden, a = self.model.forward(tokens, positions, mask, averaging=first)
            logits = self.model.logits(hidden[*places])                                    # [targets, V]

        # A search counts twice.
        loss = F.cross_entropy(logits.float(), right) * (2 if kind == "search" else 1)
        self.right.setdefault(kind, []).append((logits.argmax(1) == right).float().mean().item())
        if mixed:
            loss = loss + SINK * sink_loss(a)
            self.right.setdefault("first token", []).append(a.mean().item())
        return torch.autograd.grad(part * loss, list(self.model.weights.values()))

    def step(self):
        """One step of both optimizers."""
        # Each step has its own seed, so that a resumed run gets the same lessons as one without an interruption.
        rng = random.Random(f"{self.seed} {self.steps}")

        # The learning rate rises for 50 steps and falls over the last half of the tokens.
        share = self.done / self.tokens
        rate = 2e-3 * min(1, (self.steps + 1) / 50, 2 * (1 - share))

        # Lessons of similar length run together, each part in a thread. The parts' gradients add up in a fixed order.
        at = max(share, self.begin)
        parts = []
        for kind, made in lessons(self.teacher, rng, at).items():
            made.sort(key=lambda lesson: len(lesson.ids))
            parts += [(kind, some, len(some) / len(made), at >= MIXED)
                      for some in (made[n:n + PART] for n in range(0, len(made), PART))]
            self.done += sum(len(lesson.ids) for lesson in made)
        for weight, *gradients in zip(self.model.weights.values(), *self.pool.map(self.gradients, *zip(*parts))):
            weight.grad = sum(gradients)

        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1

        memory = min(MEMORY, self.steps / (self.steps + 10))
        with torch.no_grad():
            for name, weight in self.model.weights.items():
                self.mean[name].lerp_(weight, 1 - memory)

    def log(self, seconds: float):
        """Append a line to log.jsonl: the step, the tokens, and the shares of right targets since the last line."""
        right = {kind: round(sum(shares) / len(shares), 4) for kind, shares in self.right.items()}
        line = {"step": self.steps, "done": self.done, "seconds": round(seconds), "right": right}
        append_line(self.folder / "log.jsonl", json.dumps(line, allow_nan=False))
        self.right = {}


def main(argv=None):
    parser = make_parser("python -m tiny.train", __doc__)
    parser.add_argument("--output", type=Path, default=Path("trained"), help="(default: %(default)s)")
    parser.add_argument("--tokens", type=float, default=100e6, help="tokens to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="a checkpoint of this shape to go on from, with new optimizers")
    args = parse_options(parser, argv)

    training = Training(args.output, args.seed, args.tokens, args.start)
    torch.set_num_threads(1)                                # each part of a step has a thread
    began = time.time()
    while training.done < args.tokens:
        training.step()
        if training.steps % 25 == 0:
            training.log(time.time() - began)
        if training.steps % 100 == 0:
            training.save()
    training.save()
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
