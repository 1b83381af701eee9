"""MKRAG, a reconstruction: its index holds question-answer pairs about entities, in three grains, instead of chunks.

Once for a document: the model extracts entities with attributes, relationships and events from each chunk. Entities of
one name are joined, unimportant ones are pruned. The model then writes pairs about each of the others: one *macro* pair
about everything, a *feature* pair for each kind of item, a *micro* pair for each item (sections 4.1 to 4.4). For a
question: the model splits it into sub-questions, and each of them retrieves pairs. The model answers, or rewrites the
question once (4.5).

The paper (anonymous, under review) works with a Chinese model. It does not publish its two encoders, two of its five
prompts and four of its constants. So this row is "MKRAG, prompted, with stand-in encoders". Our choices:
- most prompts (mkrag_prompts.py). Their examples are about the Curies. A reply that names the Curies, if the text does
  not, repeats an example and is left out
- chunks of 500 tokens (its chunks for RAG), K_1 = 20, K_2 = 5, tau_1 = 2, tau_2 = 4 (in its Table 9 an entity of 7
  items has micro pairs, one of 2 has none)
- two stand-ins for its encoders: --encoder, and p_yes of Table A2's first turn with a pair as the only node
- if an entity has many items, its pairs are asked for in groups of lines. A group has at most as many tokens as a
  reply, for micro pairs a quarter as many
- an entity has one weight. Equation 5 sums the weight over the attributes. But then a villager with two attributes
  would stay, and Table 7 keeps only core entities at a threshold of 1
- the timestamp t_j of equation 4 is the order of an entity's items, which is the document's. Items keep their times,
  except general ones ("one day"). Section 4.3 prunes the entity or discards the time; here only the time goes
- a chunk whose replies are refused has no entities. The chunk itself is never indexed: that would be ordinary RAG
"""
import json
import re
from itertools import chain

from baselines.agent import Agent, cells_of, lines_of, pairs_of, sections
from baselines.common import highest, line_ids, pack_sentences, scaled
from baselines.mkrag_prompts import (
    EXTRACT,
    GUIDELINES,
    JSON_FORM,
    LOOP,
    LOOP_FORM,
    PAIR_FORM,
    PAIRS,
    SPLIT,
    SPLIT_FORM,
    WEIGH,
    WEIGHT_FORM,
)
from core.settings import Settings
from core.text import fill
from data import Prepared
from encoders.sbert import similarities
from llama import Cache, Llama, length_of
from pecan import question_prompt

KINDS = "attributes", "relationships", "events"             # of an entity's items
CHUNK_TOKENS = 500
EXTRACT_TOKENS = 1024
WEIGHTS = 0.3, 0.5, 0.7, 1.0
TAU = 0.5                         # the least weight of a kept entity; also the weight of an entity that gets none
FEATURE_ITEMS = 2                 # tau_1: an entity with so many items gets feature pairs
MICRO_ITEMS = 4                   # tau_2: and with so many, micro pairs
WEIGHT_TOKENS = 2                 # tokens of "entity | weight", at most, for each token of the entity's name
MICRO_TOKENS = 4                  # tokens of a micro pair, at most, for each token of its line
RETRIEVED = 20                    # K_1
RERANKED = 5                      # K_2
ROUNDS = 2                        # of the loop, at most (Table 6)

# In replies: the label of a sub-question, the labels of a decision, and the sign of a question.
LABEL = r"(?i)^(?:sub-?)?q(?:uestion)?[^\n:?]{0,9}:[ *_]*"
DECISIONS = r"(?:\w{1,9} )?answer|re(?:writ|construct|phras|formulat)\w{0,12}(?:[ -](?:the )?q\w{0,7})?"
ASKS = r"(?i)[?？]|^(?:in )?(?:wh(?:o|om|ose|at|en|ere|ich|y)|how)\b"

# Words of a time without a year, a date or a clock time. Numbers may stand between them.
GENERAL = set("""a an the one two three four five six seven eight nine ten some few several many this that these those
    next same following last first long in on at for of upon during after before later afterwards earlier ago once then
    now soon finally eventually meanwhile recently time times moment moments minute minutes hour hours day days today
    tonight tomorrow yesterday morning noon afternoon evening night nights week weeks month months season summer autumn
    winter year years""".split())


def echoes(reply: str, text: str) -> bool:
    """Whether a reply repeats the prompts' examples: it names the Curies, but the text does not."""
    return "Curie" in reply and "Curie" not in text


# --- entities (4.1 to 4.3) ------------------------------------------------------------------------------------------

def entities_of(reply: str, text: str) -> list[tuple[str, list]]:
    """The entities (name, items) in a reply about a text. Each JSON object with items is one.

    So a reply that was cut at its limit keeps its complete entities. The name is the field "Name" or "Entity", or else
    the key before the object.
    """
    found = []
    for match in re.finditer(r'(?:(?<!\\)("(?:[^"\\]|\\.)*+")\s*+:\s*+)?\{', reply):
        try:
            value, _ = json.JSONDecoder().raw_decode(reply, match.end() - 1)
            key = json.loads(match[1] or '""')
        except (json.JSONDecodeError, RecursionError):
            continue
        fields = {key.lower(): inner for key, inner in value.items()}
        name = " ".join(str(fields.get("name") or fields.get("entity") or key).split())
        items = [(kind, item) for kind in KINDS for item in items_of(fields.get(kind))]
        if name and items and not echoes(f"{name} {items}", text):
            found.append((name, items))
    return found


def items_of(value, keys: str = "") -> list[str]:
    """The items in a JSON value: its texts, each with the keys that lead to it, as "key | text"."""
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in items_of(inner, f"{keys}{key} | ")]
    if isinstance(value, list):
        return [item for inner in value for item in items_of(inner, keys)]
    return [] if value in (None, "") else [keys + without_general_time(" ".join(str(value).split()))]


def without_general_time(event: str) -> str:
    """An event without a general time, such as "one day", before " - ". Such a time has only GENERAL and numbers."""
    time, dash, rest = event.partition(" - ")
    words = set(re.findall(r"[^\W\d]+|\d{3,}", time.lower()))
    return rest if dash and words and words <= GENERAL else event


def joined(extracted: list[list[tuple[str, list]]]) -> dict[str, list[tuple[str, str]]]:
    """Name -> items (kind, text) of all chunks; equation 4.

    Entities are the same if their names are equal in lower case. Exact repeats of an item count once.
    """
    found = {}                                              # form -> (first wording, items)
    for name, items in chain(*extracted):
        found.setdefault(name.lower(), (name, {}))[1].update(dict.fromkeys(items))
    return {name: list(items) for name, items in found.values()}


def weights_of(reply: str) -> dict[str, float]:
    """Name in lower case -> weight, the last cell's of WEIGHTS in a line such as "entity | 1 pet | 0.3 (generic)"."""
    found = {}
    for name, *rest in cells_of(reply, 2):
        for number in map(float, re.findall(r"\d*\.?\d+", " ".join(reversed(rest)))):
            if number in WEIGHTS:
                found.setdefault(name.lower(), number)
    return found


def requests_of(name: str, items: list) -> list[tuple[str, list[str]]]:
    """Requests for an entity's pairs (4.4), as (grain, lines). Only entities with many items get feature and micro."""
    lines = {}                                              # kind of item -> lines
    for kind, item in items:
        lines.setdefault(kind, []).append(f"{name} | {item}")
    everything = list(chain(*lines.values()))

    requests = [("macro", everything)]
    if len(items) >= FEATURE_ITEMS:
        requests += [("feature", some) for some in lines.values()]
    if len(items) >= MICRO_ITEMS:
        requests.append(("micro", everything))
    return requests


# --- questions (4.5) ------------------------------------------------------------------------------------------------

def decision_of(reply: str, text: str) -> tuple[str, str] | None:
    """("Answer" or "RewriteQ", its text); None if the reply has neither. A repeated example does not count.

    The prompt wants a rewriting "if the answer cannot be derived". So a rewriting that asks something counts more than
    any answer ("unknown", "Nobody knows"). One that does not ("none") counts only if there is no answer.
    """
    found = [("Answer" if label.endswith("answer") else "RewriteQ", said)
             for label, said in sections(reply, DECISIONS) if re.search(r"\w", said) and not echoes(said, text)]

    def rank(decision):
        kind, said = decision
        return 1 if kind == "Answer" else 0 if re.search(ASKS, said) else 2
    return min(found, key=rank, default=None)


# --- the method -----------------------------------------------------------------------------------------------------

class MKRAG(Agent):
    """Build an index of question-answer pairs, retrieve from it, and read the pairs."""

    def __init__(self, model: Llama, encoder, settings: Settings):
        super().__init__(model, settings, encoder)
        self.encoder = encoder

    def build(self, document):
        """Pairs [question, answer] about the entities that are kept."""
        tokenizer = self.model.tokenizer
        chunks = pack_sentences(tokenizer, document, scaled(CHUNK_TOKENS, self.settings))
        entities = joined(self.ask_until(EXTRACT, chunks, entities_of, JSON_FORM,
                                         scaled(EXTRACT_TOKENS, self.settings)))

        # Pruning (equation 5).
        groups = fill(tokenizer, list(entities), self.limit // WEIGHT_TOKENS, "\n")
        found = self.ask_until(WEIGH, groups, lambda reply, _: weights_of(reply), WEIGHT_FORM)
        weights = dict(chain(*(some.items() for some in found)))
        kept = [name for name in entities if weights.get(name.lower(), TAU) >= TAU]

        # Pairs of all grains.
        requests = {PAIRS.format(guideline=GUIDELINES[grain], content=group): (grain, group)
                    for name in kept for grain, lines in requests_of(name, entities[name])
                    for group in fill(tokenizer, lines, self.limit // (MICRO_TOKENS if grain == "micro" else 1), "\n")}

        def pairs(reply, prompt):
            grain, group = requests[prompt]
            found = [pair for pair in pairs_of(reply, "question|q", "answer|a") if not echoes("".join(pair), group)]
            return found[:1 + group.count("\n") if grain == "micro" else 1]
        return {"pairs": list(chain(*self.ask_until("", list(requests), pairs, PAIR_FORM)))}

    def ready(self, content):
        """The pairs and their vectors (`index`, [pairs, D])."""
        texts = [f"{question} {answer}" for question, answer in content["pairs"]]
        return Prepared(texts, graph=content["pairs"], index=self.encoder.encode(texts) if texts else None)

    def read(self, prepared, question):
        """Split, retrieve, loop, read. `nodes` are the pairs that were read."""
        if not prepared.texts:
            return None
        return self.reading_of_best(question, prepared.texts, self.loop(prepared, question))

    def loop(self, prepared: Prepared, question: str) -> list[int]:
        """The retrieved pairs, in the order of retrieval."""
        def sub_questions(reply, _):
            return [re.sub(LABEL, "", line) for line in lines_of(reply) if re.search(ASKS, line)]
        [split] = self.ask_until(f"{SPLIT}Question: ", [question], sub_questions, SPLIT_FORM)
        new = split or [question]

        order = []                                          # R
        observation = []                                    # of each query, the answer of its best pair
        for _ in range(ROUNDS):
            for query in new:
                found = self.retrieve(prepared, query)
                observation.append(f"{query}: {prepared.graph[found[0]][1]}")
                order += [i for i in found if i not in order]

            # If knowledge does not fit, its end is left out.
            knowledge = [prepared.texts[i] for i in order]
            texts = (LOOP.format(observation="\n".join(observation), question=question,
                                 knowledge="\n".join(knowledge[:n])) for n in range(len(knowledge), -1, -1))
            known = " ".join([question, *knowledge])
            decision = self.ask_fitting(texts, lambda reply: decision_of(reply, known), LOOP_FORM)

            # A query that was just asked finds nothing new.
            kind, text = decision or ("", "")
            if kind != "RewriteQ" or text in new:
                break
            new = [text]
        return order

    def retrieve(self, prepared: Prepared, query: str) -> list[int]:
        """The 5 best pairs by the re-ranker among the 20 closest; ties go to the lower id."""
        scores = similarities(prepared.index, self.encoder.encode([query])[0]).tolist()    # [pairs]
        closest = highest(scores, RETRIEVED)
        sure = self.p_yes(query, [prepared.texts[i] for i in closest])
        return highest(dict(zip(closest, sure)), RERANKED, closest)

    def p_yes(self, question: str, texts: list[str]) -> list[float]:
        """How sure the model is that each text alone can answer the question.

        The prompt is the first turn of Table A2 with the text as its only node. The texts run together.
        """
        tokenizer = self.model.tokenizer
        rows = [[*question_prompt(tokenizer, question), (None, line_ids(tokenizer, text) + tokenizer.frame.close)]
                for text in texts]
        hidden, _ = self.model.read(Cache(self.model, len(rows), max(map(length_of, rows))), rows)
        logits = self.model.logits(hidden, [tokenizer.first("Yes"), tokenizer.first("No")])                # [rows, 2]
        return logits.cpu().double().softmax(1)[:, 0].tolist()
