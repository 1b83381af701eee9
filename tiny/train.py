"""Train the embedded model, on the first device available.

    python -m tiny.train
    python -m tiny.train --output other --seed 1 --tokens 30e6

It writes a checkpoint folder (for `--model`). The folder also holds log.jsonl, a line every 25 steps, and
training.safetensors, from which the same command goes on after an interruption.
"""
import json
import random
import shutil
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F

from core.command import make_parser, parse_options, user_errors
from core.files import InputError, append_line, read_noted, write_tensors
from llama import Llama
from model.checkpoint import Config, choose_device, read_config, tensor_shapes
from model.tokenizer import Tokenizer
from tiny.lessons import MIXED, Lesson, Teacher, collate, lessons

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
    D = config.width
    K = config.head_width

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
            rows_q = slice(h * K, (h + 1) * K)
            rows_k = slice(g * K, (g + 1) * K)              # of the key/value head that this head shares
            if not first:
                v[rows_k] = orthonormal()
                k[rows_k] = orthonormal() * (1.1 if layer else 0.05)

            if layer == 0:
                # Keys point in one direction, on the fast frequencies, and queries in the same, turned back by h + 1
                # positions. RoPE turns both by their positions, so that they meet h + 1 tokens apart.
                k[rows_k][FAST, 0] = 6 / constant
                q[rows_q] = 0.02 * normal(K, D)
                q[rows_q][FAST, 0] = 6 / constant * torch.cos((h + 1) * turn)
                q[rows_q][FAST + K // 2, 0] = -6 / constant * torch.sin((h + 1) * turn)
                o[:, rows_q] = 0.1 * orthonormal().T
            else:
                # W_q = W_k but for a little noise, without the frequencies that would compare positions. W_o W_v is a
                # projection times 0.1: a token takes over a part of what it matches.
                if not first:
                    k[rows_k][torch.cat((FAST, FAST + K // 2))] *= 0.1
                q[rows_q] = k[rows_k] + 0.01 * normal(K, D)
                o[:, rows_q] = 0.1 * v[rows_k].T
    return weights


# --- training -------------------------------------------------------------------------------------------------------

HOME = Path(__file__).parent
SINK = 0.1                           # weight of sink_loss, relative to cross entropy
PART = 4                             # lessons that run together; the attention of more does not fit a processor's cache
EMA_DECAY = 0.998                    # of the exponential moving average of the weights


def sink_loss(a: torch.Tensor) -> torch.Tensor:
    """The cost of attention to tokens other than the first; a [B, T, 1] is the attention to the first.

    In a published Llama a head that finds nothing rests on the first token, which takes a third to a half of all
    attention. In so small a model its attention scatters over the text and drowns the mean over heads.
    """
    return -(a + 0.001).log().mean()


class Training:
    """A model in training, the running mean of its weights and its optimizers; training.safetensors holds all of it.

    The checkpoint has the mean, because the weights themselves differ much from step to step. InputError if the folder
    holds other files than a training's, or a training from another seed.
    """

    def __init__(self, folder: Path, seed: int, tokens: float):
        self.folder = folder
        self.file = folder / "training.safetensors"
        self.tokens = tokens
        self.right = defaultdict(list)                      # shares of right targets since the last line of the log
        self.pool = ThreadPoolExecutor(torch.get_num_threads())

        config = read_config(HOME)
        self.teacher = Teacher(Tokenizer(HOME, config.vocab), config.eos[0])

        self.seed = seed
        self.steps = self.done = 0

        # The state: of each weight, itself, its mean and what its optimizer keeps.
        if self.file.exists():
            tensors, note = read_noted(self.file)
            stored, self.steps, self.done = json.loads(note)
            if stored != seed:
                raise InputError(f"{self.file}: is of --seed {stored}; choose it, or another --output")
        elif folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: holds files, but no training; choose another --output")
        else:
            start = structured_start(config, seed)
            tensors = {f"{name} {part}": weight for name, weight in start.items() for part in ("weight", "mean")}

        self.device, _ = choose_device()
        self.state = defaultdict(dict)
        for key, tensor in tensors.items():
            name, part = key.split()
            self.state[name][part] = tensor.to(self.device, copy=True)
        weights = {name: parts.pop("weight").requires_grad_() for name, parts in self.state.items()}
        self.mean = {name: parts.pop("mean") for name, parts in self.state.items()}
        self.model = Llama(config, weights)

        # Muon trains the matrices of the layers, AdamW the embeddings and the norms.
        matrices = [weight for name, weight in weights.items() if "proj" in name]
        others = [weight for name, weight in weights.items() if "proj" not in name]
        self.optimizers = [torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
                           torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)]
        for name, weight in weights.items():
            self.optimizers["proj" not in name].state[weight] = self.state[name]

    def save(self):
        """Write the state of the training, and the checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, weight in self.model.weights.items():
            parts = {"weight": weight.detach(), "mean": self.mean[name], **self.state[name]}
            tensors |= {f"{name} {part}": tensor.cpu() for part, tensor in parts.items()}
        write_tensors(self.file, tensors, json.dumps((self.seed, self.steps, self.done)))

        for file in HOME.glob("*.json"):
            shutil.copy(file, self.folder)
        write_tensors(self.folder / "model.safetensors", {name: mean.cpu() for name, mean in self.mean.items()})

    def gradients(self, kind: str, made: list[Lesson], share: float, sink: bool) -> list[torch.Tensor]:
        """The gradients of some lessons of one kind; `share` is theirs of all its lessons in this step.

        With `sink`, sink_loss is added. Then the fused kernel, which is faster, cannot run.
        """
        tokens, positions, mask, rows, columns, right = (tensor.to(self.device) for tensor in collate(made))
        first = torch.zeros(*tokens.shape, 1, device=self.device)                          # [B, T, 1]
        first[:, 0] = 1
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden, a = self.model.forward(tokens, positions, mask, averaging=first if sink else None)
            logits = self.model.logits(hidden[rows, columns])                              # [targets, V]

        # A search counts twice.
        loss = share * F.cross_entropy(logits.float(), right) * (2 if kind == "search" else 1)
        self.right[kind].append((logits.argmax(1) == right).float().mean().item())
        if sink:
            loss = loss + SINK * sink_loss(a)
            self.right["first token"].append(a.mean().item())
        return torch.autograd.grad(loss, list(self.model.weights.values()))

    def step(self):
        """One step of both optimizers."""
        # Each step has its own seed, so that a resumed run gets the same lessons as one without an interruption.
        rng = random.Random(f"{self.seed} {self.steps}")

        # The learning rate rises for 50 steps and falls over the last half of the tokens.
        share = self.done / self.tokens
        rate = 2e-3 * min(1, (self.steps + 1) / 50, 2 * (1 - share))

        # Lessons of similar length run together, each part in a thread. The parts' gradients add up in a fixed order.
        # sink_loss, which is slow, comes from one part of each kind.
        parts = []
        for kind, made in lessons(self.teacher, rng, share).items():
            made.sort(key=lambda lesson: len(lesson.ids))
            together = [made[n:n + PART] for n in range(0, len(made), PART)]
            chosen = rng.choice(together) if share >= MIXED else None
            parts += [(kind, some, len(some) / len(made), some is chosen) for some in together]
            self.done += sum(len(lesson.ids) for lesson in made)
        for weight, *gradients in zip(self.model.weights.values(), *self.pool.map(self.gradients, *zip(*parts))):
            weight.grad = sum(gradients)

        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self.steps += 1

        decay = min(EMA_DECAY, self.steps / (self.steps + 10))
        with torch.no_grad():
            for name, weight in self.model.weights.items():
                self.mean[name].lerp_(weight, 1 - decay)

    def log(self, seconds: float):
        """Append a line to log.jsonl: the step, the tokens, and the shares of right targets since the last line."""
        right = {kind: round(sum(shares) / len(shares), 4) for kind, shares in self.right.items()}
        line = {"step": self.steps, "done": self.done, "seconds": round(seconds), "right": right}
        append_line(self.folder / "log.jsonl", json.dumps(line, allow_nan=False))
        self.right.clear()


def main(argv=None):
    parser = make_parser("python -m tiny.train", __doc__)
    parser.add_argument("--output", type=Path, default=Path("trained"), help="(default: %(default)s)")
    parser.add_argument("--tokens", type=float, default=100e6, help="tokens to train on")
    parser.add_argument("--seed", type=int, default=0)
    args = parse_options(parser, argv)

    training = Training(args.output, args.seed, args.tokens)
    torch.set_num_threads(1)                                # each part of a step has a thread
    began = time.time()
    while training.done < args.tokens:
        training.step()
        if training.steps % 25 == 0:
            training.save()
            training.log(time.time() - began)
    training.save()
    return 0


if __name__ == "__main__":
    sys.exit(user_errors(main))
