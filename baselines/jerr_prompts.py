"""Prompts for JERR. Our copy of the paper has none.

SYNOPSIS and LOOK_UP are ReadAgent's (Lee et al. 2024), which the paper names as its pattern. "Related" in LOOK_UP and
all other prompts are ours.
"""
SYNOPSIS = ("Please shorten the following passage.\nJust give me a shortened version. DO NOT explain your reason.\n\n"
            "Passage:\n")
ATOMS = ("List the entities of the following text: people, places, organisations, things, times. One a line, after "
         "\"* \", by their full names.\n\nText:\n")
ELEMENTS = ("List the core elements of the following text: its key actions, states, causes and ideas, each as a short "
            "phrase in the text's own words. One a line, after \"* \".\n\nText:\n")
EDGES = ("Which of these entities are directly related in the text? One relation a line, in the form: entity | "
         "relation | entity. The first causes, owns, contains or acts on the second. Use exactly the words of the list."
         "\n\nEntities:\n")
KEYWORDS = "List the keywords of the question, one a line, after \"* \". Do not answer it.\n\nQuestion:\n"
LOOK_UP = """The following text is what you remember from reading an article and a {kind}question related to it.
You may read 1 to {most} page(s) of the article again to refresh your memory to prepare yourself for the question.
Please respond with which page(s) you would like to read.
For example, if you only need to read Page 8, respond with "I want to look up Page [8] to ..."; if you would like to \
read Page 7 and 12, respond with "I want to look up Page [7, 12] to ..."; if you would like to read Page 2, 3, 7, 15 \
and 18, respond with "I want to look up Page [2, 3, 7, 15, 18] to ...".
DO NOT select more pages if you don't need to.
You don't need to answer the question yet.
Text:
{pages}
Related:
{related}
Question:
{question}"""
