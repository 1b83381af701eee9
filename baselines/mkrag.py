"""MKRAG, a reconstruction: its index holds question-answer pairs about entities, in three grains, instead of chunks.

Once for a document: the model extracts entities with attributes, relationships and events from each chunk. Entities of
one name are joined, unimportant ones are pruned. The model then writes pairs about each of the others: one *macro* pair
about everything, a *feature* pair for each kind of item, a *micro* pair for each item (sections 4.1 to 4.4). For a
question: the model splits it into sub-questions, and each of them retrieves pairs. The model says whether these answer
the question, or rewrites it once (4.5).

The paper (anonymous, under review) works with a Chinese model. It does not publish its two encoders, two of its five
prompts and four of its constants. So this row is "MKRAG, prompted, with stand-in encoders". Our choices:
- most prompts (mkrag_prompts.py). Their examples are about the Curies
- two rounds (Table 6): the model is asked once whether it can answer. Its answer is thrown away, because the shared
  reader answers. So a question of three hops is only answered if one of its sub-questions needs no other's answer
- the observation (A.4.4) is the answer of the best pair of each sub-question. The lines before it, "Knowledge:
  {Knowledge} Question: {Question}", are left out, because they come again at the prompt's end
- the fine-tuned extractor (4.1), shortest paths (4.4) and re-ranking by additional attributes (4.5) are missing
- a pair that repeats another is left out: it would take a place among the five
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
from contextlib import suppress
from itertools import chain

from baselines.agent import NUMBER, Agent, fields_of, form_of, lines_of, plain, rated
from baselines.common import closeness, highest, line_ids, pack_sentences, scaled
from baselines.mkrag_prompts import EXTRACT, GUIDELINES, LOOP, PAIRS, SPLIT, WEIGH
from core.settings import Settings
from core.text import fill
from data import Prepared
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

RATED = rf"(.+?)\W*\|\W*({NUMBER})\W*"   # a line of weights

# Words of a time without a year, a date or a clock time. Numbers may stand between them.
GENERAL = set("""a an the one two three four five six seven eight nine ten some few several many this that these those
    next same following last first long in on at for of upon during after before later afterwards earlier ago once then
    now soon finally eventually meanwhile recently time times moment moments minute minutes hour hours day days today
    tonight tomorrow yesterday morning noon afternoon evening night nights week weeks month months season summer autumn
    winter year years""".split())


# --- entities (4.1 to 4.3) ------------------------------------------------------------------------------------------

def entities_of(reply: str, _) -> list[tuple[str, str, str] | None]:
    """(name, kind, item) for each item in a reply's JSON object, {name: {kind: items}}; None for what is no item."""
    with suppress(json.JSONDecodeError, RecursionError):
        # An object becomes a tuple of its pairs, so that no value of a repeated key is lost.
        found = json.loads(reply[reply.find("{"):reply.rfind("}") + 1], object_pairs_hook=tuple)
        kinds = [(name, kind.lower(), items) for name, fields in found
                 for kind, items in (fields if isinstance(fields, tuple) else [("", fields)])]
        return [(name, kind, without_time(item)) if kind in KINDS and item else None
                for name, kind, items in kinds for item in items_in(items)]
    return []


def items_in(value, keys: str = "") -> list[str]:
    """The items in a JSON value: its texts, each with the keys that lead to it, as "key | text"; "" for null.

    An object is a tuple of pairs. One that is in a list is one item, such as an event with its time.
    """
    if isinstance(value, tuple):
        return [item for key, inner in value for item in items_in(inner, f"{keys}{key} | ")]
    if isinstance(value, list):
        texts = [", ".join(items_in(inner)).replace(" | ", ": ") if isinstance(inner, tuple) else inner
                 for inner in value]
        return [item for text in texts for item in items_in(text, keys)]
    return [keys + " ".join(str(value).split())] if value not in (None, "") else [""]


def without_time(event: str) -> str:
    """An event without the time before " - ", if that is general, such as "one day": has only GENERAL and numbers.

    Table 9 has keys before the time: "Event 1 | one day - ..".
    """
    keys, bar, said = event.rpartition(" | ")
    time, dash, rest = said.partition(" - ")
    words = set(re.findall(r"[^\W\d]+|\d{3,}", time.lower()))
    return keys + bar + rest if dash and words and words <= GENERAL else event


def joined(extracted: list[list[tuple[str, str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """Name -> items (kind, text) of all chunks; equation 4. An entity without an item never appears (equation 5).

    Entities are the same if their names are equal in lower case. A repeated item counts once.
    """
    found = {}                                              # name in lower case -> (first wording, items as keys)
    for name, kind, text in chain(*extracted):
        _, items = found.setdefault(name.lower(), (name, {}))
        items[kind, text] = None
    return {name: list(items) for name, items in found.values()}


def weights_of(reply: str, names: str) -> list[tuple[str, float] | None]:
    """(name, weight) for each line such as "name | 0.3"; None for others. `names` has a name a line."""
    return [rate if rate and rate[1] in WEIGHTS else None for rate in rated(reply, RATED, names.splitlines())]


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


def pairs_of(reply: str, _) -> list[list[str] | None]:
    """The pairs [question, answer] in a reply: a line behind "Question:" and one behind "Answer:". None for others."""
    pairs = []
    for label, text in fields_of(reply, "question|answer"):
        line = "" if "\n" in text else plain(text)
        if label == "answer" and pairs and not pairs[-1][1]:
            pairs[-1][1] = line
        else:
            pairs.append([line if label == "question" else "", ""])
    return [pair if all(pair) else None for pair in pairs]


# --- questions (4.5) ------------------------------------------------------------------------------------------------

def sub_questions(reply: str, _) -> list[str | None]:
    """The lines of a reply that end with a question mark; None for others."""
    return [line if re.search(r"[?？؟]\W*\Z", line) else None for line in lines_of(reply)]


def decisions_of(reply: str, _) -> list[tuple[str, str] | None]:
    """(label, line) for each line behind "Answer:" or "RewriteQ:" in a reply; None for others."""
    return [(label, plain(text)) if label and text and "\n" not in text else None
            for label, text in fields_of(reply, "answer|rewriteq")]


# --- the method -----------------------------------------------------------------------------------------------------

class MKRAG(Agent):
    """Build an index of question-answer pairs, retrieve from it, and read the pairs."""

    def __init__(self, model: Llama, encoder, settings: Settings):
        super().__init__(model, settings)
        self.encoder = encoder

    def build(self, document, talk):
        """Pairs [question, answer] about the entities that are kept."""
        tokenizer = self.model.tokenizer
        chunks = pack_sentences(tokenizer, document, scaled(CHUNK_TOKENS, self.settings))
        found = yield from talk.ask(EXTRACT, chunks, entities_of, scaled(EXTRACT_TOKENS, self.settings))
        entities = joined(found)

        # Pruning (equation 5).
        groups = fill(tokenizer, entities, self.limit // WEIGHT_TOKENS, "\n")
        weights = yield from talk.ask(WEIGH, groups, weights_of)
        weights = dict(chain(*weights))

        # Pairs of all grains.
        requests = {PAIRS.format(guideline=GUIDELINES[grain], content=group): group
                    for name, items in entities.items() if weights.get(name, TAU) >= TAU
                    for grain, lines in requests_of(name, items)
                    for group in fill(tokenizer, lines, self.limit // (MICRO_TOKENS if grain == "micro" else 1), "\n")}

        pairs = yield from talk.ask("", list(requests), lambda reply, prompt: pairs_of(reply, requests[prompt]))
        return {"pairs": list({form_of(" ".join(pair)): pair for pair in chain(*pairs)}.values())}

    def ready(self, content):
        """The pairs and their vectors (`index`, [pairs, D])."""
        texts = [f"{question} {answer}" for question, answer in content["pairs"]]
        return Prepared(texts, graph=content["pairs"], index=self.encoder.encode(texts) if texts else None,
                        counts=self.encoder.cut(texts))

    def read(self, prepared, question):
        """Split, retrieve, ask for a decision, retrieve again, read. `nodes` are the pairs that were read."""
        if not prepared.texts:
            return None
        [queries] = self.ask(f"{SPLIT}Question: ", [question], sub_questions)
        found = {query: self.retrieve(prepared, query) for query in queries or [question]}
        order = list(dict.fromkeys(chain(*found.values())))                    # R
        observation = "\n".join(f"{query}: {prepared.graph[best][1]}" for query, (best, *_) in found.items())

        # If knowledge does not fit, its end is left out.
        knowledge = [prepared.texts[i] for i in order]
        texts = (LOOP.format(observation=observation, question=question, knowledge="\n".join(knowledge[:n]))
                 for n in range(len(knowledge), -1, -1))
        decisions = self.ask_fitting(texts, decisions_of)

        # The prompt wants a rewriting "if the answer cannot be derived". So it counts more than any answer.
        # Each of several rewritings is looked up.
        order += chain(*(self.retrieve(prepared, text) for kind, text in decisions if kind == "rewriteq"))
        return self.reading_of_best(question, prepared.texts, dict.fromkeys(order))

    def retrieve(self, prepared: Prepared, query: str) -> list[int]:
        """The 5 best pairs by the re-ranker among the 20 closest; ties go to the lower id."""
        closest = highest(closeness(self.encoder, prepared, query), RETRIEVED)
        sure = self.p_yes(query, [prepared.texts[i] for i in closest])
        return highest(dict(zip(closest, sure)), RERANKED, closest)

    def p_yes(self, question: str, texts: list[str]) -> list[float]:
        """How sure the model is that each text alone can answer the question.

        The prompt is the first turn of Table A2 with the text as its only node. The texts run together.
        """
        tokenizer = self.model.tokenizer
        before_reply = tokenizer.frame.before_reply
        rows = [[*question_prompt(tokenizer, question), (None, line_ids(tokenizer, text) + before_reply)]
                for text in texts]

        def sure(rows):
            hidden, _ = self.model.read(Cache(self.model, len(rows), max(map(length_of, rows))), rows)
            logits = self.model.logits(hidden, [tokenizer.first("Yes"), tokenizer.first("No")])            # [rows, 2]
            return logits.cpu().double().softmax(1)[:, 0].tolist()

        return self.batches.all(rows, length_of, sure)
