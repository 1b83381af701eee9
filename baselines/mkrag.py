"""MKRAG, a reconstruction: question-answer pairs about entities, of three grains, are the index instead of chunks.

Once for a document: the model extracts entities with attributes, relationships and events from each chunk; those of one
name are joined, unimportant ones pruned; the model writes pairs about each: one *macro* pair about all it has, a
*feature* pair for each kind of item, *micro* pairs for each item (sections 4.1 to 4.4). For a question: it is split
into sub-questions, each retrieves pairs; the model answers or rewrites the question once (4.5).

The paper (anonymous, under review) publishes neither its two encoders, nor two of its five prompts, nor four of its
constants, and works with a Chinese model. So this row is "MKRAG, prompted, with stand-in encoders"; ours are:
- EXTRACT, WEIGH, SPLIT, the example of LOOP and its two forms of a reply. PAIRS (A.4.2, with Table 9's pair as its
  example) and the rest of LOOP (A.4.4) are the paper's; in LOOP, its line of Knowledge and Question shapes the example
- pairs are asked for in groups of lines whose prompt and replies fit; so a long entity has several macro pairs
- chunks of 500 tokens (its chunks for RAG), K_1 = 20, K_2 = 5, tau_1 = 2, tau_2 = 4 (its Table 9: 7 items have micro
  pairs, 2 have none)
- its two retrieval models are --encoder, and p_yes of Table A2's first turn with the pair as its only node
- pruning: one weight an entity, and at least one item. Equation 5 sums the weight over the attributes, but then a
  villager with two would stay, and its Table 7 keeps the core entities alone at 1
- general times ("one day") are deleted from events; the entity stays, because nothing else is lost
- a chunk whose replies are refused has no entities; it is never indexed itself, which would be RAG by another name
"""
import json
import re
from itertools import chain

from baselines.agent import Agent, cells_of, lines_of, reminder
from baselines.common import highest, line_ids, pack_sentences, scaled
from core.settings import Settings
from core.text import fill
from data import Answer, Document, Prepared
from llama import Cache, Llama, length_of
from pecan import question_prompt
from support.sbert import similarities

EXTRACT = """[Task] Extract entities from the following text in accordance with the guidelines.
[Guidelines] Read the text closely and extract detailed entities (such as people, objects, places), their attributes, \
the relationships between them (such as cause, belonging, kinship) and the events in which they took part, with time \
and details. Write full names, no pronouns. Not entities (negative samples): "the next day", "a crowd". Reply with one \
JSON object and nothing else.
[Example] {"Pierre Curie": {"Attributes": {"Occupation": "Physicist"}, "Relationships": {"Wife": "Marie Curie"}, \
"Events": ["1903 - Wife awarded the Nobel Prize in Physics"]}}
[Text]
"""
WEIGH = """Give each entity a weight.
0.3: generic or vague, such as "villager" or "merchant". 0.5: specific to the context, such as "Zhu Bajie's wife". \
0.7: rare or with a unique name, such as "White Bone Demon". 1.0: a core entity, such as "Sun Wukong".
Reply with one line each: entity | weight
Entities:
"""
PAIRS = """[Instruction]
The following are Question-Answer pairs generated based on provided entities and attributes/relationships/events.
[Guidelines]
{guideline}
Entity Relationships:
"
Pierre Curie | Wife | Marie Curie
"
Question:
Who is Pierre Curie's wife?
Answer:
Marie Curie.
Begin!
Entity Relationships:
"
{content}
\""""
SPLIT = """Break the question into sub-questions, one for each entity that it names. Reply with one sub-question a \
line.
"""
LOOP = """[Task] Understand the Question, extract or deduce the answer based on the Knowledge, and if the answer \
cannot be derived, reconstruct the Question based on the missing information. Finally, output the answer.
Reply with "Answer: .." or "RewriteQ: ..".
[Observation]
{observation}
[Example]
Knowledge: Who is Pierre Curie's wife? Marie Curie. Question: What did Pierre Curie's wife discover?
RewriteQ: What did Marie Curie discover?
Begin!
Question: {question}
Knowledge:
{knowledge}"""
GUIDELINES = {"macro": "One pair that joins all lines.", "feature": "One pair about all lines.",
              "micro": "One pair for each line."}
LOOP_FORM = "Reply with \"Answer: ..\" or \"RewriteQ: ..\"."
JSON_FORM = "Reply with one JSON object."
WEIGHT_FORM = "One line each: entity | weight."
PAIR_FORM = "Write each pair as two lines, \"Question: ..\" and \"Answer: ..\"."

# A line of a pair: numbered or not, bold or not, in the words of A.4.2 or of Table 9. An answer may follow its question
# in the same line.
FIELD = re.compile(r"[\s\d.)*#_-]*+(question|q|answer|a)[\s\d*_]{0,9}:[*_]*(.*)", re.IGNORECASE)
ANSWER_FOLLOWS = re.compile(r"\?[\s*_]{1,9}(?=(?:answer|a)[*_]{0,4}:)", re.IGNORECASE)

CHUNK_TOKENS = 500
EXTRACT_TOKENS = 1024
NAMES = 50                        # that are weighed in one call
LINES = 10                        # that get micro pairs in one call: 51 tokens for each
WEIGHTS = "0.3", "0.5", "0.7", "1.0", "1"
TAU = 0.5                         # least weight of an entity that is kept; also the weight of one without
FEATURE_ITEMS = 2                 # tau_1: an entity with so many items gets feature pairs
MICRO_ITEMS = 4                   # tau_2
RETRIEVED = 20                    # K_1
RERANKED = 5                      # K_2
ROUNDS = 2                        # of the loop, at most (Table 6)

# Words that say when without naming a year, a date or a clock time; numbers may stand between them.
GENERAL = set("""a an the one two three four five six seven eight nine ten some few several many this that these those
    next same following last first long in on at for of upon during after before later afterwards earlier ago once then
    now soon finally eventually meanwhile recently time times moment moments minute minutes hour hours day days today
    tonight tomorrow yesterday morning noon afternoon evening night nights week weeks month months season summer autumn
    winter year years""".split())


# --- entities (4.1 to 4.3) ------------------------------------------------------------------------------------------

def entities_of(reply: str) -> list[tuple[str, list]] | None:
    """The entities that the JSON in a reply describes, as (name, items); None if it describes none.

    Where an object cannot be read, those in it are: a reply that was cut by its limit keeps its complete entities.
    """
    found = []
    end = 0
    for match in re.finditer(r'(?:"([^"\\]*+)"\s*+:\s*+)?\{', reply):
        if match.start() < end:
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(reply, match.end() - 1)
            found += described(value, match[1] or "")
        except json.JSONDecodeError:
            continue
        except RecursionError:
            break
    return found or None


def described(value, name: str = "") -> list[tuple[str, list]]:
    """The entities in a JSON value: named by the key before them, or by a field "Name" or "Entity" of their own."""
    if isinstance(value, list):
        return [entity for inner in value for entity in described(inner)]
    if not isinstance(value, dict):
        return []
    fields = {key.lower(): inner for key, inner in value.items()}
    items = items_of(fields)
    if not items:
        return [entity for key, inner in value.items() for entity in described(inner, key)]
    name = " ".join(str(fields.get("name") or fields.get("entity") or name).split())
    return [(name, items)] if name else []


def values_of(value) -> list[str]:
    """The texts in a JSON value: a list gives each of its own, an object is flattened to "key: value"."""
    if isinstance(value, dict):
        return [f"{key}: {text}" for key, inner in value.items() for text in values_of(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in values_of(inner)]
    text = "" if value is None else " ".join(str(value).split())
    return [text] if text else []


def items_of(fields: dict) -> list[tuple[str, str, str]]:
    """The items of an extracted entity, whose keys are in lower case: (dimension, key, value). Events have no key."""
    items = []
    for dimension in ("Attributes", "Relationships"):
        content = fields.get(dimension.lower())
        for key, value in content.items() if isinstance(content, dict) else [("", content)]:
            items += [(dimension, key, text) for text in values_of(value)]
    return items + [("Events", "", without_general_time(text)) for text in values_of(fields.get("events"))]


def without_general_time(event: str) -> str:
    """An event without a general time before " - ", such as "one day": nothing but words of GENERAL and numbers."""
    time, dash, rest = event.partition(" - ")
    words = set(re.findall(r"[^\W\d]+|\d{3,}", time.lower()))
    return rest if dash and words and words <= GENERAL else event


def joined(extracted: list[list[tuple[str, list]]]) -> dict[str, list[tuple[str, str, str]]]:
    """Name -> items (dimension, key, value) of all chunks; equation 4.

    Entities are one if their names are equal in lower case. Exact repeats of an item count once.
    """
    names = {}                                              # form -> first wording
    found = {}
    for name, items in chain(*extracted):
        name = names.setdefault(name.lower(), name)
        found.setdefault(name, {}).update(dict.fromkeys(items))
    return {name: list(items) for name, items in found.items()}


def weights_of(reply: str, names: list[str]) -> dict[str, float]:
    """Name -> weight, from lines "entity | weight"; other names and other weights are left out."""
    forms = {name.lower(): name for name in names}
    return {forms[name.lower()]: float(weight) for name, weight in cells_of(reply, 2)
            if name.lower() in forms and weight in WEIGHTS}


# --- pairs (4.4) ----------------------------------------------------------------------------------------------------

def requests_of(name: str, items: list) -> list[tuple[str, list[str]]]:
    """What is asked for about an entity: (grain, lines). Macro for all, feature and micro for those rich enough."""
    lines = {}                                              # dimension -> lines
    for dimension, key, value in items:
        lines.setdefault(dimension, []).append(f"{name} | {key} | {value}" if key else f"{name} | {value}")
    everything = [line for of_dimension in lines.values() for line in of_dimension]

    requests = [("macro", everything)]
    if len(items) >= FEATURE_ITEMS:
        requests += [("feature", of_dimension) for of_dimension in lines.values()]
    if len(items) >= MICRO_ITEMS:
        requests.append(("micro", everything))
    return requests


def pairs_of(reply: str, most: int) -> list[tuple[str, str]]:
    """The first `most` question-answer pairs of a reply; a question without an answer is none.

    A text stands behind "Question:" or "Q:", "Answer:" or "A:", or on the next line.
    """
    pairs = []
    field = question = ""
    for line in ANSWER_FOLLOWS.sub("?\n", reply).split("\n"):
        named = FIELD.match(line)
        if named:
            field = named[1][0].lower()
            line = named[2]
        text = line.strip(" \t*_")
        if text and field == "q":
            question = text
            field = ""
        elif text and field == "a":
            pairs += [(question, text)] if question else []
            field = question = ""
    return pairs[:most]


# --- questions (4.5) ------------------------------------------------------------------------------------------------

def sub_questions(reply: str) -> list[str]:
    """The sub-questions of a reply; a line without a question mark is none."""
    return [line for line in lines_of(reply) if "?" in line]


def decision_of(reply: str) -> tuple[str, str] | None:
    """("Answer" or "RewriteQ", its text), whichever comes first; None if the reply has neither.

    An answer that says "cannot" is none if a question follows.
    """
    found = [(kind, text.strip(" \t*_")) for kind, text in re.findall(r"\b(Answer|RewriteQ)[*_]*:(.*)", reply)]
    if len(found) > 1 and found[0][0] == "Answer" and re.search(r"\b(cannot|can't|not)\b", found[0][1]):
        found = found[1:]
    return found[0] if found else None


# --- the method -----------------------------------------------------------------------------------------------------

class MKRAG(Agent):
    """Build an index of question-answer pairs, retrieve from it, and read the pairs."""

    def __init__(self, model: Llama, encoder, settings: Settings):
        super().__init__(model, settings, encoder)
        self.encoder = encoder

    def construct(self, document: Document) -> dict:
        """Pairs [question, answer] about the entities that are not pruned."""
        chunks = pack_sentences(self.model.tokenizer, document, scaled(CHUNK_TOKENS, self.settings))
        extracted = self.ask_until([EXTRACT + chunk for chunk in chunks], lambda n, reply: entities_of(reply),
                                   JSON_FORM, scaled(EXTRACT_TOKENS, self.settings))
        entities = joined([found or [] for found in extracted])

        # Pruning (equation 5). An entity that is given no weight has TAU.
        names = list(entities)
        groups = [names[first:first + NAMES] for first in range(0, len(names), NAMES)]
        found = self.ask_until([WEIGH + "\n".join(group) for group in groups],
                               lambda n, reply: weights_of(reply, groups[n]) or None, WEIGHT_FORM)
        weights = {name: weight for of_group in found for name, weight in (of_group or {}).items()}
        names = [name for name in names if weights.get(name, TAU) >= TAU]

        # Pairs of all grains.
        requests = [(grain, group) for name in names for grain, lines in requests_of(name, entities[name])
                    for group in self.groups(grain, lines)]
        texts = [PAIRS.format(guideline=GUIDELINES[grain], content="\n".join(lines)) for grain, lines in requests]
        most = [len(lines) if grain == "micro" else 1 for grain, lines in requests]
        written = self.ask_until(texts, lambda n, reply: pairs_of(reply, most[n]) or None, PAIR_FORM)
        return {"pairs": [pair for pairs in written for pair in pairs or []]}

    def groups(self, grain: str, lines: list[str]) -> list[list[str]]:
        """Lines in groups whose prompt fits the window, and for micro pairs the replies as well."""
        if grain == "micro":
            most = scaled(LINES, self.settings)
            return [lines[first:first + most] for first in range(0, len(lines), most)]
        empty = reminder(PAIR_FORM) + PAIRS.format(guideline=GUIDELINES[grain], content="")
        room = self.settings.window - self.limit - len(self.user_turn(empty))
        return [group.split("\n") for group in fill(self.model.tokenizer, lines, room, "\n")]

    def ready(self, content: dict) -> Prepared:
        """The pairs and their vectors (`index`, [pairs, D])."""
        texts = [f"{question} {answer}" for question, answer in content["pairs"]]
        return Prepared(texts, graph=content["pairs"], index=self.encoder.encode(texts) if texts else None)

    def read(self, prepared: Prepared, question: str) -> Answer | None:
        """Split, retrieve, loop, read. `nodes` are the pairs that were read."""
        if not prepared.texts:
            return None
        return self.answer_from_best(question, prepared.texts, self.loop(prepared, question))

    def loop(self, prepared: Prepared, question: str) -> list[int]:
        """The pairs that were retrieved, in the order in which they were."""
        [split] = self.ask_until([f"{SPLIT}Question: {question}"], lambda n, reply: sub_questions(reply) or None,
                                 "One sub-question a line.")
        new = queries = split or [question]

        order = []                                          # R
        observation = []                                    # of each query, the answer of its best pair
        for _ in range(ROUNDS):
            for query in new:
                found = self.retrieve(prepared, query)
                observation.append(f"{query}: {prepared.graph[found[0]][1]}")
                order += [i for i in found if i not in order]

            # Knowledge that does not fit is left out from the end.
            knowledge = [prepared.texts[i] for i in order]
            texts = (LOOP.format(observation="\n".join(observation), question=question,
                                 knowledge="\n".join(knowledge[:n])) for n in range(len(knowledge), -1, -1))
            text = self.fitting(texts, reminder(LOOP_FORM))
            [decision] = self.ask_until([text], lambda n, reply: decision_of(reply), LOOP_FORM)
            kind, text = decision or ("", "")

            # An empty query, or one that was asked before, finds nothing new.
            if kind != "RewriteQ" or not text or text in queries:
                break
            new = [text]
            queries = [*queries, text]
        return order

    def retrieve(self, prepared: Prepared, query: str) -> list[int]:
        """The 5 best pairs by the re-ranker among the 20 closest; ties go to the lower id."""
        scores = similarities(prepared.index, self.encoder.encode([query])[0]).tolist()    # [pairs]
        closest = highest(scores, RETRIEVED)
        sure = self.p_yes(query, [prepared.texts[i] for i in closest])
        return highest(dict(zip(closest, sure)), RERANKED, closest)

    def p_yes(self, question: str, texts: list[str]) -> list[float]:
        """How sure the model is that each text alone can answer the question.

        It is the first turn of Table A2, with the text as its only node; a batch of texts runs together.
        """
        tokenizer = self.model.tokenizer
        close = tokenizer.frame.close
        sure = []
        for first in range(0, len(texts), self.settings.batch):
            rows = [[*question_prompt(tokenizer, question), (None, line_ids(tokenizer, text))]
                    for text in texts[first:first + self.settings.batch]]
            cache = Cache(self.model, len(rows), max(map(length_of, rows)) + len(close))
            hidden, _ = self.model.read(cache, rows, probe=close)
            logits = self.model.logits(hidden)[:, [tokenizer.first("Yes"), tokenizer.first("No")]]         # [rows, 2]
            sure += logits.cpu().double().softmax(1)[:, 0].tolist()
        return sure
