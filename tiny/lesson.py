"""A training sequence: token ids, branches of it, and what is right next; and lessons as a batch."""
from dataclasses import dataclass, field

import torch

from llama import Segment


@dataclass
class Lesson:
    """One training sequence: a trunk of token ids, branches of it, and targets.

    A branch (start, end, prefix) is ids[start:end]. It continues ids[:prefix] and sees that prefix and itself, but no
    other branch: like the probe of a search, which is taken back. Its positions follow the prefix. A target
    (place, id) says that `id` is right after ids[place].
    """
    ids: list[int]
    targets: list[tuple[int, int]] = field(default_factory=list)
    branches: list[tuple[int, int, int]] = field(default_factory=list)

    def add_branch(self, prefix: int, ids: list[int]):
        start = len(self.ids)
        self.ids += ids
        self.branches.append((start, len(self.ids), prefix))

    def add_target(self, id: int):
        """`id` is right after the last token so far."""
        self.targets.append((len(self.ids) - 1, id))


def joined(segments: list[Segment]) -> list[int]:
    """The token ids of a prompt, whose segments are tokenised one by one."""
    return [id for _, ids in segments for id in ids]


def collate(lessons: list[Lesson], device):
    """One batch of lessons, padded at the end: tokens, positions, mask, places and right.

    tokens and positions are [B, T]. mask [B, T, T] is True where a token may see another, or None if no lesson has
    branches (causal). places are (rows, columns) of the targets, right [targets] the ids that are right after them.
    """
    B, T = len(lessons), max(len(lesson.ids) for lesson in lessons)
    tokens = torch.zeros(B, T, dtype=torch.long)
    positions = torch.arange(T).repeat(B, 1)
    mask = None
    if any(lesson.branches for lesson in lessons):
        mask = torch.ones(T, T, dtype=torch.bool).tril().repeat(B, 1, 1)

    # A branch sees neither the rest of the trunk nor the branches before it.
    for b, lesson in enumerate(lessons):
        tokens[b, :len(lesson.ids)] = torch.tensor(lesson.ids)
        for start, end, prefix in lesson.branches:
            positions[b, start:end] = torch.arange(prefix, prefix + end - start)
            mask[b, start:end, prefix:start] = False

    rows = torch.tensor([b for b, lesson in enumerate(lessons) for _ in lesson.targets])
    columns = torch.tensor([place for lesson in lessons for place, _ in lesson.targets])
    right = torch.tensor([id for lesson in lessons for _, id in lesson.targets])

    if mask is not None:
        mask = mask.to(device)
    places = rows.to(device), columns.to(device)
    return tokens.to(device), positions.to(device), mask, places, right.to(device)
