"""The prompts of MKRAG. PAIRS and LOOP are the paper's (A.4.2, A.4.4). EXTRACT follows A.4.1, of which our copy of the
paper has only fragments. WEIGH and SPLIT are ours, because the paper has none.

In PAIRS the guidelines are ours; the example is the pair of Table 9. In LOOP the two forms of a reply and the example
are ours; the example has the form of A.4.4's line "Knowledge: .. Question: ..".
"""
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
# A small model answers "One pair about all lines." with a sentence.
GUIDELINES = {"macro": "One question, with its answer, that joins all lines.",
              "feature": "One question, with its answer, about all lines.",
              "micro": "One question, with its answer, for each line."}
