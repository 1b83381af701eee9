"""Small bugs, put into the source one at a time: a test must turn red for each.

    python tests/mutations.py [name ...]       applies them all, or the named ones, and says which test caught each
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# name: (file, text, what stands there instead)
MUTATIONS = {
    "RoPE scaling dropped": ("llama.py", "if c.rope is None:", "if True:"),
    "interleaved RoPE": (
        "llama.py", "second = x.chunk(2, dim=-1)\n    return x * cos + torch.cat((-second, first), dim=-1)",
        "second = x[..., ::2], x[..., 1::2]\n    return x * cos + torch.stack((-second, first), -1).flatten(-2)"),
    "wrong GQA order": ("llama.py", "attention(q.view(B, c.kv_heads, -1, T, c.head_width), k, v, mask)",
                        "attention(q.view(B, -1, c.kv_heads, T, c.head_width).transpose(1, 2), k, v, mask)"),
    "mask off by one": ("llama.py", "<= positions[:, :, None]", "<= positions[:, :, None] + 1"),
    "cache position off by one": ("llama.py", "cache.lengths = [s + n for s, n in zip(start, counts)]",
                                  "cache.lengths = [s + n - 1 for s, n in zip(start, counts)]"),
    "all positions shifted by one": ("llama.py", "= rope_tables(positions, ", "= rope_tables(positions + 1, "),
    "no 1/sqrt(K)": ("llama.py", " * q.shape[-1] ** -0.5", ""),
    "norm weight before the cast": ("llama.py", "return weight * y.to(x.dtype)", "return (weight * y).to(x.dtype)"),
    "second softmax": ("llama.py", "accumulator / c.layers", "(accumulator / c.layers).softmax(-1)"),
    "a node's mass in place of its mean": ("llama.py", "n] = 1 / (end - start)", "n] = 1"),
    "attention of the predicting token": (                        # the row before: that of the token's predecessor
        "llama.py", "seen[row].append(a[0])", "seen[row] = [*seen[row][1:], a[0], a[0]][-len(ids[row]):]"),
    "head mean in bfloat16": ("llama.py", "mean = weights.mean((1, 2))", "mean = weights.to(x.dtype).mean((1, 2))"),
    "keys not rotated": ("llama.py", "q, k = rotate(q, cos, sin), rotate(k, cos, sin)", "q = rotate(q, cos, sin)"),
    "no mask": ("llama.py", "scores = scores.masked_fill(~mask[:, None, None], float(\"-inf\"))", "pass"),
    "probes cost nothing": ("llama.py", "        cache.take_back(before)\n",
                            "        cache.take_back(before)\n        self.flops -= len(ids)\n"),
    "builder ignored": ("pecan.py", "build(self.builder, ", "build(self.model, "),
    "always Yes in the answer turn": ("pecan.py", "verdict = self.no if self.trace[-1].verdict == \"No\" else self.yes",
                                      "verdict = self.yes"),
    "similarity clamped in the ablation": ("pecan.py", "        return z, c\n", "        return z, c.clamp(min=0)\n"),
    "probe not taken back": ("llama.py", "        cache.take_back(before)\n", ""),
    "edges not normalised": ("pecan.py", "return e / e.sum()", "return e"),
    "E for its transpose": ("pecan.py", "z = E.T @ r", "z = E @ r"),
    "position factor dropped": ("pecan.py", "self.r[node] = position * seen", "self.r[node] = seen"),
    "position factor off by one": ("pecan.py", "position = len(self.trace) + 2", "position = len(self.trace) + 1"),
    "r is a sum over the node's tokens": ("pecan.py", ".cpu().double().mean()\n        self.trace",
                                          ".cpu().double().sum()\n        self.trace"),
    "marker counted in a visited node": ("pecan.py", "seen[0, len(marker[1]):, 0]", "seen[0, :, 0]"),
    "marker counted in an IP": ("pecan.py", "if a < end and b > start]", "if a < end and b >= start - 1]"),
    "cosine not clamped": ("pecan.py", "share(c.clamp(min=0))", "share(c)"),
    "visited nodes may be read again": ("pecan.py", "i not in visited and self.fits(i)", "self.fits(i)"),
    "ties go to the higher id": ("pecan.py", "(-scores[i], i))", "(-scores[i], -i))"),
    "patience off by one": ("pecan.py", "verdicts >= self.settings.patience", "verdicts > self.settings.patience"),
    "confidence ignored": ("pecan.py", "p_yes > self.settings.confidence", "p_yes > 0.5"),
    "no room kept for the answer": ("pecan.py", "[node]) <= self.nodes_end", "[node]) <= self.nodes_end + 40"),
    "a cut bullet is kept": ("pecan.py", "return spans if complete or len(spans) == 1 else spans[:-1]", "return spans"),
}


def killers(name: str) -> list[str]:
    """The tests that fail with this mutation (the first of them), in a copy of the project."""
    file, old, new = MUTATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "pecan"
        ignored = shutil.ignore_patterns(".git", "results*", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        source = (copy / file).read_text(encoding="utf-8")
        if source.count(old) != 1:
            raise ValueError(f"{name}: {file} holds {old!r} {source.count(old)} times; a mutation needs one place")
        (copy / file).write_text(source.replace(old, new), encoding="utf-8")
        tests = ["test_llama.py"] if file == "llama.py" else []
        run = subprocess.run([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
                              *(f"tests/{test}" for test in [*tests, "test_pecan.py"])], cwd=copy, capture_output=True,
                             text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if run.returncode not in (0, 1):
            raise RuntimeError(f"{name}: the tests did not run\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        return re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", run.stdout, re.MULTILINE)


def main():
    survivors = 0
    for name in sys.argv[1:] or MUTATIONS:
        caught = killers(name)
        survivors += not caught
        print(f"{name:40} {caught[0] if caught else 'SURVIVES'}", flush=True)
    print(f"{survivors} survive")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
