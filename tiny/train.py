"""Train the embedded model from scratch, on the device that is there: an hour to an hour and a half on two CPU cores.

    python -m tiny.train [--output DIR] [--tokens 34e6]

Writes a checkpoint folder (for `--model`), apart from the shipped one, and training.safetensors in it, from which
the same command goes on after an interruption.

Why it does not start from random weights: from the usual initialisation such a model learns to copy, but not whose
fact it copies. The structured start ("mimetic initialisation", Trockman and Kolter 2023) gives it attention that
looks back one to four tokens in the first layer and compares contents in the others; the drill then takes minutes.
"""
import argparse
import json
import random
import re
import time
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import pecan
from llama import Llama
from support.checkpoint import Config, choose_device, read_config, save_checkpoint, tensor_shapes
from support.tokenizer import Tokenizer
from tiny import world as W
from tiny.lessons import Teacher, collate

SPECIALS = ["<unk>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
WORD = r"\n\n|\n|'s|\w+|[^\w\s]"
# In the style of Llama 3's chat template, without a system turn.
TEMPLATE = ("{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
            "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
            "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")
# The drill, step by step: questions (options of Teacher.drill), then windows of so many passages to be listed as well.
DRILLS = [dict(names=16, relations=1, facts=8, tasks=10), dict(relations=1, facts=8, tasks=10),
          dict(relations=3, facts=10, absent=0.2), dict(absent=0.3), dict(absent=0.2, hops=0.5), 1, 2]
ENOUGH = 0.95                                                     # share of right answers that ends a step of the drill
LONGEST = 600                                                     # and so many steps of training end it too


def write_tokenizer(folder: Path) -> int:
    """One token for each word of the world, the prompts and the template; returns how many there are."""
    texts = [*pecan.SUMMARISE, *pecan.ASK, pecan.ANSWER, *W.FILLERS, *W.NAMES, *W.VALUES, *sum(W.VALUES.values(), []),
             "What Who is was and 's ? . user assistant Yes No \n\n \n "]
    words = sorted({word for text in texts for word in re.findall(WORD, text)})
    vocabulary = {word: i for i, word in enumerate(SPECIALS + words)}
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


def structured_start(c: Config, seed: int) -> dict[str, torch.Tensor]:
    """Weights from which attention begins as a look at the tokens before (layer 0) and as a comparison of contents.

    All embeddings share a constant in their first coordinate. In layer 0 query and key are made from it alone, on the
    six fastest RoPE frequencies, and head h's query is turned back by h + 1 positions: it finds the token h + 1 back,
    whatever that is. In the other layers W_q = W_k, small on those frequencies, and W_o W_v is a scaled projection:
    what matches is moved to where it matched.
    """
    generator, D, K, fast = torch.Generator().manual_seed(seed), c.width, c.head_width, torch.arange(6)

    def basis(n):                                                 # n orthonormal rows [n, D]
        return torch.linalg.qr(torch.randn(D, n, generator=generator))[0].T
    w = {name: torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) / D ** 0.5
         for name, size in tensor_shapes(c).items()}
    w["model.embed_tokens.weight"][:, 0] = 0.5
    constant = 0.5 * (D / 1.25) ** 0.5                            # what the first norm makes of it
    turn = c.rope_theta ** (-2 * fast / K)                        # radians a position
    for layer in range(c.layers):
        q, k, v, o = (w[f"model.layers.{layer}.self_attn.{name}_proj.weight"] for name in "qkvo")
        w[f"model.layers.{layer}.mlp.down_proj.weight"] *= 0.2
        for h in range(c.kv_heads):
            rows = slice(h * K, h * K + K)
            v[rows], k[rows] = basis(K), basis(K) * (1.1 if layer else 0.05)
            if layer:
                k[rows][torch.cat((fast, fast + K // 2))] *= 0.1
            else:
                k[h * K + fast, 0] = 6 / constant
        for h in range(c.heads):
            g = h * c.kv_heads // c.heads                         # the key/value head it shares
            rows, shared = slice(h * K, h * K + K), slice(g * K, g * K + K)
            noise = torch.randn(K, D, generator=generator)
            if layer:
                q[rows], o[:, rows] = k[shared] + 0.01 * noise, 0.1 * v[shared].T
            else:
                q[rows], o[:, rows] = 0.02 * noise, 0.1 * basis(K).T
                q[h * K + fast, 0] = 6 / constant * torch.cos((h + 1) * turn)
                q[h * K + K // 2 + fast, 0] = -6 / constant * torch.sin((h + 1) * turn)
    return w


class Training:
    """Weights, the two optimizers and where the curriculum stands; all of it in training.safetensors."""

    def __init__(self, folder: Path, seed: int, tokens: float, rate: float = 2e-3):
        self.folder, self.seed, self.tokens, self.rate = folder, seed, tokens, rate
        self.raw = shape(write_tokenizer(folder))
        (folder / "config.json").write_text(json.dumps(self.raw, indent=2) + "\n")
        (folder / "pecan.json").write_bytes((Path(__file__).parent / "pecan.json").read_bytes())
        config, (self.device, _) = read_config(folder), choose_device()
        self.weights = {n: x.to(self.device).requires_grad_() for n, x in structured_start(config, seed).items()}
        self.model, tokenizer = Llama(config, self.weights), Tokenizer(folder)
        self.teacher = Teacher(tokenizer, config.eos[0])
        matrices = [n for n, x in self.weights.items() if x.ndim == 2 and "embed" not in n]
        others = [n for n in self.weights if n not in matrices]
        self.optimizers = {
            "muon": (matrices, torch.optim.Muon([self.weights[n] for n in matrices], weight_decay=0.0,
                                                adjust_lr_fn="match_rms_adamw")),
            "adam": (others, torch.optim.AdamW([self.weights[n] for n in others], betas=(0.9, 0.98), weight_decay=0.0))}
        self.at = {"step": 0, "done": 0, "drill": 0, "since": 0}
        self.right: dict[str, float] = {}                         # running share of right targets, by kind of lesson
        if (folder / "training.safetensors").exists():
            self.restore()

    def save(self):
        """Write the model and the state of the training; each file is replaced at once."""
        state = {f"{kind}.{name}.{key}": value for kind, (names, optimizer) in self.optimizers.items()
                 for name, p in zip(names, optimizer.param_groups[0]["params"])
                 for key, value in optimizer.state[p].items() if torch.is_tensor(value)}
        state |= {f"weight.{name}": x.detach() for name, x in self.weights.items()}
        partial = self.folder / "training.partial"
        save_file({n: x.contiguous() for n, x in state.items()}, partial,
                  metadata={"at": json.dumps(self.at), "right": json.dumps(self.right)})
        partial.replace(self.folder / "training.safetensors")
        save_checkpoint(self.folder, self.raw, self.weights)

    def restore(self):
        path = self.folder / "training.safetensors"
        with safe_open(path, framework="pt") as file:
            self.at, self.right = (json.loads(file.metadata()[key]) for key in ("at", "right"))
        state = load_file(path, device=str(self.device))
        for kind, (names, optimizer) in self.optimizers.items():
            for name, p in zip(names, optimizer.param_groups[0]["params"]):
                optimizer.state[p] = {n.removeprefix(f"{kind}.{name}."): x for n, x in state.items()
                                      if n.startswith(f"{kind}.{name}.")}
        with torch.no_grad():
            for name, x in self.weights.items():
                x.copy_(state[f"weight.{name}"])
        print(f"going on at step {self.at['step']}")

    def lessons(self, rng) -> dict[str, list]:
        """The lessons of one step: the drill alone, or all kinds together."""
        t, at = self.teacher, self.at["drill"]
        if at < len(DRILLS) and isinstance(DRILLS[at], dict):
            return {"drill": [t.drill(rng, **DRILLS[at]) for _ in range(32)]}
        if at < len(DRILLS):
            return {"drill": [t.drill(rng, absent=0.3) for _ in range(8)],
                    "listing": [t.listing(rng, DRILLS[at]) for _ in range(32)]}
        room = rng.choice((160, 220, 300, 400, 470))              # short searches teach more, long ones are real
        return {"drill": [t.drill(rng, absent=0.3, hops=0.3) for _ in range(6)],
                "listing": [t.listing(rng, rng.choice((3, 5, 7))) for _ in range(6)],
                "summary 2": [t.summary(rng, 1) for _ in range(4)], "summary 3": [t.summary(rng, 2) for _ in range(2)],
                "search": [t.search(rng, room) for _ in range(5000 // (room + 60))]}

    def step(self):
        """One step of both optimizers; the rate rises for 50 steps and falls over the last third."""
        rng = random.Random(f"{self.seed} {self.at['step']}")     # a resumed run has the lessons it would have had
        scale = min(1, (self.at["step"] + 1) / 50, 0.02 + (1 - self.at["done"] / self.tokens) / 0.35)
        for kind, lessons in self.lessons(rng).items():
            tokens, positions, mask, places, wanted = collate(lessons, self.device)
            hidden, _ = self.model.forward(tokens, positions, mask)
            logits = self.model.logits(hidden[places])            # [targets, V]
            loss = F.cross_entropy(logits, wanted)
            (loss * (2 if kind == "search" else 1)).backward()
            self.at["done"] += tokens.numel()
            self.note(kind, logits.argmax(1) == wanted, wanted)
        for _, optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self.rate * scale
            optimizer.step()
            optimizer.zero_grad()
        self.at["step"] += 1
        self.at["since"] += 1
        if self.at["drill"] < len(DRILLS) and self.at["since"] > 30 and (
                min(self.right.values()) > ENOUGH or self.at["since"] > LONGEST):
            self.at |= {"drill": self.at["drill"] + 1, "since": 0}
            self.right = {}

    def note(self, kind, right, wanted):
        verdicts = (wanted == self.teacher.first("Yes")) | (wanted == self.teacher.first("No"))
        for name, chosen in ((kind, ~verdicts), (f"{kind}: verdicts", verdicts)):
            if chosen.any():
                share = right[chosen].float().mean().item()
                self.right[name] = self.right.get(name, share) + 0.05 * (share - self.right.get(name, share))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("trained"), help="(default: %(default)s)")
    parser.add_argument("--tokens", type=float, default=34e6, help="tokens to train on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    training, began = Training(args.output, args.seed, args.tokens), time.time()
    while training.at["done"] < args.tokens:
        training.step()
        if training.at["step"] % 50 == 0:
            shares = "  ".join(f"{kind} {share:.3f}" for kind, share in training.right.items())
            print(f"step {training.at['step']}  {training.at['done'] / 1e6:.1f}M tokens  {time.time() - began:.0f} s  "
                  f"drill {training.at['drill']}  right: {shares}", flush=True)
        if training.at["step"] % 200 == 0:
            training.save()
    training.save()


if __name__ == "__main__":
    main()
