"""Each bug of mutations.py has its place and its test. `python tests/mutations.py` shows that the test catches it."""
from mutations import MUTATIONS, ROOT, argument_of


def test_every_bug_has_its_line_and_its_test():
    """Each has exactly one. A change of the sources or the tests that breaks this is noticed in seconds."""
    for name, (file, old, new, test) in MUTATIONS.items():
        count = (ROOT / file).read_text(encoding="utf-8").count(old)
        assert count == 1 and new != old, f"{name}: {file} holds {old!r} {count} times"
        path, function = argument_of(test).split("::")
        assert f"\ndef {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{name}: no {test}"
