"""The expressions of workflows, as far as ours use them: ``github.event.label.name == 'gpu' && always()``."""

import json
import re

TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>\d+)|(?P<name>[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)"
    r"|(?P<sign>\|\||&&|==|!=|[!(),]))"
)
HOLE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
STATUS = ("always", "cancelled", "failure", "success")


class Expression:
    """A parser that evaluates as it reads; names are looked up in ``contexts``, absent ones are empty."""

    def __init__(self, text, contexts, functions):
        self.tokens, at, text = [], 0, text.strip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"cannot read the expression {text!r} at {text[at:]!r}")
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        self.contexts, self.functions = contexts, functions

    def value(self):
        """Evaluate all of it."""
        result = self.either()
        if self.tokens:
            raise ValueError(f"left over: {self.tokens}")
        return result

    def take(self, *signs):
        """Remove the next token if it is one of these signs."""
        return self.tokens.pop(0)[1] if self.tokens and self.tokens[0] in [("sign", sign) for sign in signs] else ""

    def either(self):
        """``a || b``: as in JavaScript, the first that counts as true."""
        left = self.both()
        while self.take("||"):
            right = self.both()
            left = left or right
        return left

    def both(self):
        """``a && b``."""
        left = self.equal()
        while self.take("&&"):
            right = self.equal()
            left = left and right
        return left

    def equal(self):
        """``a == b``; GitHub compares texts without regard to case."""
        left = self.one()
        while sign := self.take("==", "!="):
            right = self.one()
            left = (fold(left) == fold(right)) == (sign == "==")
        return left

    def one(self):
        """A literal, a name, a call, a negation, or a part in parentheses."""
        if self.take("!"):
            return not self.one()
        if self.take("("):
            inside = self.either()
            assert self.take(")")
            return inside
        kind, word = self.tokens.pop(0)
        if kind == "text":
            return word[1:-1].replace("''", "'")
        if kind == "number":
            return int(word)
        if self.take("("):
            arguments = []
            while not self.take(")"):
                arguments.append(self.either())
                self.take(",")
            return self.functions[word](*arguments)
        return lookup(self.contexts, word)


def fold(value):
    """Return what is compared."""
    return "" if value is None else value.lower() if isinstance(value, str) else value


def lookup(contexts, name):
    """Return ``a.b.c`` of nested mappings; a name whose context we do not have is a mistake of the workflow."""
    first, *rest = name.split(".")
    value = contexts[first]
    for part in rest:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def functions(status):
    """Return the functions of expressions for a job in a state: "success", "failure" or "cancelled"."""
    return {
        "always": lambda: True, "cancelled": lambda: status == "cancelled", "failure": lambda: status == "failure",
        "success": lambda: status == "success", "fromJSON": json.loads,
    }  # fmt: skip


def evaluate(text, contexts, status="success"):
    """Return the value of an expression with or without its ``${{ }}``."""
    inside = HOLE.fullmatch(str(text).strip())
    return Expression(inside[1] if inside else str(text), contexts, functions(status)).value()


def holds(condition, contexts, status="success"):
    """Say whether an ``if:`` lets a step or job run; without a status function it wants success, as GitHub has it."""
    if condition is None:
        return status == "success"
    named = any(f"{name}()" in str(condition) for name in STATUS)
    return bool(evaluate(condition, contexts, status)) and (named or status == "success")


def fill(value, contexts, status="success"):
    """Return a setting with its ``${{ }}`` filled in: alone an object of any kind, within a text a text."""
    if isinstance(value, dict):
        return {key: fill(part, contexts, status) for key, part in value.items()}
    if isinstance(value, list):
        return [fill(part, contexts, status) for part in value]
    if not isinstance(value, str):
        return value
    if HOLE.fullmatch(value.strip()) and value.count("${{") == 1:
        return evaluate(value, contexts, status)
    return HOLE.sub(lambda hole: as_text(evaluate(hole[1], contexts, status)), value)


def as_text(value):
    """Return how GitHub prints a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
