"""Extract the answer of a reasoning model: a letter, a number, a formula or a program.

The references' regular expressions are rewritten with possessive quantifiers (`*+`, `++`), which
give the same matches without backtracking, so that the time is linear in the text's length.

Source: language/deepseek-r1/eval_accuracy.py and language/gpt-oss-120b/eval_accuracy.py of
https://github.com/mlcommons/inference.
"""

from __future__ import annotations

import re
from functools import cache

FINAL = re.compile(r"<\|channel\|>final[^<]*+<\|message\|>")
RETURN = "<|return|>"
BOLD = re.compile(r"\*\*([^*]++)\*\*")
LIST_BRACKETS = (("['", '["'), ("']", '"]'))

BOXED = "\\boxed{"
BOXED_NUMBER = re.compile(r"\\boxed\{\s*+(\d++)\s*+\}")
NUMBER = re.compile(r"Answer:\s*+(\d++)(?!\.)\b", re.IGNORECASE)
MAX_AIME_ANSWER = 999
FENCE = "```"
LANGUAGE = re.compile(r"(?:python|py)\s*\n", re.IGNORECASE)


def final_section(text: str) -> str:
    """Return the final section of gpt-oss's answer, or all of it, by the reference's rules."""
    text = text.strip()
    head = FINAL.search(text)
    return text[head.end() :].partition(RETURN)[0].strip() if head else text


@cache
def _letter(options: str, form: str) -> re.Pattern[str]:
    return re.compile(form.replace("OPTIONS", options), re.IGNORECASE)


def _stated(text: str, options: str) -> str | None:
    form = r"\b(?:ANSWER|FINAL\s*+ANSWER)\b\s*+[:=]?+\s*+\(?+\s*+([OPTIONS])(?![A-Za-z])"
    return _last(_letter(options, form), text)


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    letters: list[str] = pattern.findall(text)
    return letters[-1].upper() if letters else None


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\'", "'")


def _unlisted(text: str) -> str:
    starts, ends = LIST_BRACKETS
    if text.startswith(starts) and text.endswith(ends):
        text = text[2:-2].strip()
    return _unescaped(text)


def _last_letter(text: str, options: str) -> str | None:
    """Return the last of A to J that is a word by itself; None if absent or `options` is "A-D"."""
    return _last(_letter(options, r"\b([OPTIONS])\b"), text) if options == "A-J" else None


def choice(text: str, options: str) -> str | None:
    """Return the letter in `options` ("A-D" or "A-J") that DeepSeek-R1's script grades, or None."""
    text = _unlisted(text.strip())
    return _stated(text, options) or _last_letter(text, options)


def final_choice(text: str, options: str) -> str | None:
    """Return the option letter that gpt-oss's script grades, or None; `options`: "A-D" or "A-J"."""
    final = _unlisted(BOLD.sub(r"\1", final_section(text)))
    begins = _letter(options, r"[^a-zA-Z]*([OPTIONS])(?:[^a-zA-Z]|$)").match(final.strip())
    first = begins or _letter(options, r"\bAnswer\s*+[:.]?+\s*+([OPTIONS])\b").search(final)
    if first:
        return first[1].upper()
    return _stated(_unescaped(text.strip()), options) or _last_letter(final, options)


def boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{}; None if there is none or it is not closed."""
    _, box, rest = text.strip().rpartition(BOXED)
    depth = 1 if box else 0
    for position, character in enumerate(rest if box else ""):
        depth += (character == "{") - (character == "}")
        if not depth:
            return rest[:position].strip()
    return None


def number(text: str) -> int | None:
    r"""Return the last number in a \boxed{}, else the last number after "Answer:".

    Returns None if there is no such number or it is above 999.
    """
    digits = BOXED_NUMBER.findall(text) or NUMBER.findall(text.strip())
    # int() refuses more than 4,300 digits.
    if not digits or len(digits[-1]) > 4300:
        return None
    value = int(digits[-1])
    return value if value <= MAX_AIME_ANSWER else None


def program(text: str) -> str | None:
    """Return the first fenced Python block, as DeepSeek-R1's script does; None if there is none."""
    return _blocks(text, f"{FENCE}python", first=True)


def final_program(text: str) -> str | None:
    """Return an answer's program, see `GptOssScorer`: a Python code block, else any, or None."""
    text = text.strip()
    for part in (final_section(text), text):
        code = _blocks(part, f"{FENCE}python")
        if code is not None:
            return code
        code = _blocks(part, FENCE)
        if code is not None:
            match = LANGUAGE.match(code)
            return code[match.end() :] if match else code
    return None


def _blocks(text: str, opening: str, *, first: bool = False) -> str | None:
    code, start = None, text.find(opening)
    while start >= 0 and (end := text.find(FENCE, start + len(opening))) >= 0:
        code = text[start + len(opening) : end].strip()
        if first:
            break
        start = text.find(opening, end + len(FENCE))
    return code
