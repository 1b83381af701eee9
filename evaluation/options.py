"""The option that a reply names, as in "The answer is (B), not (A)"."""
import re
import string

# An option's letter that stands alone. "A dog" and "I think" begin with a word.
LETTER = (r"(?<!\w)(?<!\w')(?<!N/)(?!I +(?!(?:is|and|n?or|but|because|since|as)\b)\w)"
          r"(?!(?<![a-z,] )A +(?!(?:is|was|fits|seems|would|must|best describes|and|n?or|but|because|since|as)\b)\w)"
          r"[{}](?!'?\w)")
# In lower case only if it is marked: "b." on a line or behind "the answer is", "(b)" anywhere.
SMALL = r"(?m)(?:^|(?i:answer|option|choice)(?: is)?)[^\w\n]{0,9}[a-z](?=[.:)\]*]|\s*$)|\([a-z]\)"

# From here on, capitals are the letters of options and all else is in lower case. "A, B or option (C)" becomes "ABC".
JOINT = r"(?<=[A-Z])(?:[ ,/&*()\[\]]|\b(?:and|n?or|option)\b)+(?=[A-Z])"

# What denies a letter, and what ends a clause; a verdict alone, as in "A. Wrong.", belongs to the clause before it.
DENIAL = (r"\b(?:not|never|neither|cannot|than|instead of|except|wrong|incorrect|false|no\W*$|un(?:supported|likely)|"
          r"eliminat\w+|ruled? out|contradict\w*)\b|n't\b|[✗✘❌]")
CLAUSE = (r"(\n|(?:[.!?;,:]|\s[-–—]\s|\b(?:and|but|so|because|since|as|while|though|although)\b)"
          r"(?![^\w\n]{0,9}(?:(?:no|not|wrong|incorrect|false)\b[^\w\n]{0,9}(?:[.;,\n]|\Z)|[✗✘❌])))")

IS = "(?:is|was|(?:seems|appears|has|would|must|might)(?: to)?(?: be)?)"
ALONE = r"\A\W{0,9}([A-Z])\W{0,9}(?:\n|\Z)"                                          # C, whatever follows
VERDICT = (rf"(?:(?:^|[:;,.] )\W{{0,9}}(?:[a-z]+ ){{0,2}}(?:answer|choice)\W{{0,4}}:|"       # Answer: C
           rf"\b(?:answer|choice) {IS})\W{{0,9}}(?:option )?([A-Z]+)")          # The right answer is (C)
FORMS = (r"^\W*(?:A\W+(?=[A-Z]))?([A-Z]+)(?=\W*$|\s*[^\w\s,])",              # C   (C) he did   C: he did   A: C
         r"([A-Z]+)\W{1,4}is (?:\w+ ){0,2}(?:correct|right|best|better|answer)\b",   # A might be right, but C is best
         rf"([A-Z]+)\W{{1,4}}(?:{IS}|as) (?:\w+ ){{0,2}}(?:correct|right|best|better|answer)\b",  # C might be best
         r"\b(?:answer|choice)[^.!?]{0,99}?([A-Z]+)",                            # option A fits, but the answer is C
         r"\boption[^.!?]{0,99}?([A-Z]+)",                                       # option C
         r"([A-Z]+)")                                                           # I think it is C


def option_of(prediction: str, options: list[str]) -> int | None:
    """The index of the one option that a prediction names; None if it names none or several.

    An option's text counts as its letter. A denial ("not A", "A and B are wrong") takes away the nearest letters of its
    clause, and a list of all options names none. Then a letter ALONE on the first line decides, or else the first line
    with a VERDICT, or else the first line that has a letter, by the first of the FORMS that it has. A new "Question:"
    ends a reply, unless it names nothing yet. The papers do not say how they match replies.
    """
    letters = string.ascii_uppercase[:len(options)]
    reply, *texts = [text.replace("’", "'") for text in (prediction, *options)]
    for text, letter in sorted(zip(texts, letters), key=lambda pair: -len(pair[0])):        # one may contain another
        reply = re.sub(rf"(?i)(?<!\w){re.escape(text.strip(' .')) or '(?!)'}(?!\w)", f"({letter})", reply)

    reply = re.sub(SMALL, lambda found: found[0].upper(), reply)
    reply = re.sub(f"(?s)({LETTER.format(letters)})|.", lambda found: found[1] or found[0].lower(), reply)
    reply = "".join(map(without_denied, re.split(CLAUSE, re.sub(JOINT, "", reply))))

    whole_list = r"\n+".join(rf"[^\w\n]{{0,9}}{letter}+[^\w\s,].*" for letter in letters)
    parts = re.split(r"\n\W{0,9}q(?:uestion)?\b[^\n]{0,9}:", re.sub(f"(?m)^{whole_list}", "", reply))
    found = (re.findall(form, text) for part in parts
             for forms, texts in (((ALONE,), [part]), ((VERDICT,), part.split("\n")), (FORMS, part.split("\n")))
             for text in texts for form in forms)
    named = {*"".join(next(filter(None, found), []))}
    return letters.index(named.pop()) if len(named) == 1 else None


def without_denied(clause: str) -> str:
    """A clause with blanks for the letters that it denies. Of two that are equally near, the one behind is meant."""
    letters = [found.span() for found in re.finditer("[A-Z]+", clause)]
    for no in re.finditer(DENIAL, clause) if letters else ():
        start, end = min(letters, key=lambda span: (max(span[0] - no.end(), no.start() - span[1]), -span[0]))
        clause = clause[:start] + " " * (end - start) + clause[end:]
    return clause
