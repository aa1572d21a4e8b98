"""Ways in which programs read stdin, and the output of each in LiveCodeBench's runner.

The third column is what lcb_runner/evaluation/testing_util.py of
https://github.com/LiveCodeBench/LiveCodeBench (28fef95) captures; None stands for an exception.
Programs that read descriptor 0 itself are in test_livecodebench.py, where they run in a sandbox.
"""

from __future__ import annotations

ONE, TWO, BLANK, OPEN, NONE = "3\n", "3\n4\n", "3\n\n4\n", "3\n4", ""
"""Inputs: a line, two lines, a blank line between, no last line break, nothing."""

LOOP = "import sys\nwhile line := sys.stdin.readline():\n    print(len(line))"
ITER = "import sys\nfor line in iter(sys.stdin.readline, ''):\n    print(len(line))"
UNTIL_EOF = (
    "total = 0\nwhile True:\n    try:\n        line = input()\n    except EOFError:\n"
    "        break\n    total += len(line) + 1\nprint(total)"
)
UNTIL_ANYTHING = UNTIL_EOF.replace("except EOFError", "except")
OWN_LOOP = "from sys import stdin\nwhile line := stdin.readline():\n    print(len(line))"
OWN_ITER = "from sys import stdin\nfor line in iter(stdin.readline, ''):\n    print(len(line))"
GENERATOR = (
    "def lines():\n    while True:\n        try:\n            yield input()\n"
    "        except EOFError:\n            return\nprint(sum(len(line) for line in lines()))"
)
FILEINPUT = "import fileinput\nfor line in fileinput.input():\n    print(len(line))"
ALIAS = "import sys\ninput = sys.stdin.readline\nn = int(input())\nprint(n, repr(input()))"
LAMBDA = (
    "import sys\ninput = lambda: sys.stdin.readline().rstrip('\\r\\n')\nprint(repr(input()), "
    "repr(input()), repr(input()))"
)
INSIDE = "def main():\n    from sys import stdin\n    print(len(stdin.readline()))\nmain()"

IDIOMS: tuple[tuple[str, str, str | None], ...] = (
    ("print(repr(input()))", ONE, "'3'\n"),
    ("print(repr(input()))", NONE, None),
    ("print(repr(input()), repr(input()))", TWO, "'3' '4'\n"),
    ("print(repr(input()), repr(input()), repr(input()))", BLANK, "'3' '' '4'\n"),
    ("print(repr(input('n? ')))", ONE, "n? '3'\n"),
    ("print(repr(input()))", "\n", "''\n"),
    ("input(); input(); input()", TWO, None),
    (UNTIL_EOF, ONE, "2\n"),
    (UNTIL_EOF, BLANK, "5\n"),
    (UNTIL_EOF, OPEN, "4\n"),
    (UNTIL_EOF, NONE, "0\n"),
    (UNTIL_ANYTHING, BLANK, "5\n"),
    (GENERATOR, BLANK, "2\n"),
    ("import sys\nprint(repr(sys.stdin.readline()))", ONE, "'3\\n'\n"),
    ("import sys\nprint(repr(sys.stdin.readline()))", NONE, "''\n"),
    ("import sys\nprint(repr(sys.stdin.readline()[:-1]))", ONE, "'3'\n"),
    ("import sys\nprint(repr(sys.stdin.readline().rstrip()))", ONE, "'3'\n"),
    ("import sys\nprint(len(sys.stdin.readline()))", ONE, "2\n"),
    ("import sys\nprint(len(sys.stdin.readline()))", "3", "1\n"),
    ("import sys\nprint(repr(sys.stdin.readline(1)))", "34\n", "'3'\n"),
    ("import sys\nprint(sys.stdin.readline(), end='')", ONE, "3\n"),
    (LOOP, TWO, "2\n2\n"),
    (LOOP, BLANK, "2\n1\n2\n"),
    (LOOP, OPEN, "2\n1\n"),
    (ITER, BLANK, "2\n1\n2\n"),
    (ITER, OPEN, "2\n1\n"),
    (ALIAS, TWO, "3 '4\\n'\n"),
    (ALIAS, OPEN, "3 '4'\n"),
    (LAMBDA, BLANK, "'3' '' '4'\n"),
    (LAMBDA, OPEN, "'3' '4' ''\n"),
    ("import sys\nprint(repr(sys.stdin.read()))", BLANK, "'3\\n\\n4\\n'\n"),
    ("import sys\nprint(repr(sys.stdin.read()), repr(sys.stdin.read()))", ONE, "'3\\n' '3\\n'\n"),
    ("import sys\nprint(repr(sys.stdin.read(1)))", TWO, "'3\\n4\\n'\n"),
    ("import sys\nprint(sys.stdin.read().split())", BLANK, "['3', '4']\n"),
    ("import sys\nprint(sys.stdin.read().splitlines())", BLANK, "['3', '', '4']\n"),
    ("import sys\nprint(input(), repr(sys.stdin.read()))", TWO, "3 '3\\n4\\n'\n"),
    ("import sys\nprint(repr(sys.stdin.read()), input())", TWO, "'3\\n4\\n' 3\n"),
    ("import sys\nprint(sys.stdin.readlines())", TWO, "['3', '4', '']\n"),
    ("import sys\nprint(input(), sys.stdin.readlines())", TWO, "3 ['3', '4', '']\n"),
    ("import sys\nfor line in sys.stdin:\n    print(line)", TWO, None),
    ("import sys\nprint(list(map(int, sys.stdin)))", TWO, None),
    ("import sys\nprint(next(sys.stdin))", TWO, None),
    ("import sys\nprint(sys.stdin.buffer.read())", TWO, "b'3\\n4\\n'\n"),
    (
        "import sys\nprint(sys.stdin.buffer.readline(), sys.stdin.buffer.readline())",
        TWO,
        "b'3\\n' b'3\\n'\n",
    ),
    ("import sys\nprint(list(sys.stdin.buffer))", TWO, None),
    ("import sys\nprint(sys.stdin.buffer.readlines())", TWO, None),
    ("import sys\nprint(sys.stdin.isatty(), sys.stdin.seekable())", ONE, "False True\n"),
    ("import sys\ninput()\nsys.stdin.seek(0)\nprint(input())", TWO, "3\n"),
    ("print(repr(open('input.txt').readline()))", TWO, None),
    (FILEINPUT, TWO, "2\n2\n"),
    (FILEINPUT, BLANK, "2\n1\n2\n"),
    ("from sys import stdin\nprint(repr(stdin.readline()))", ONE, "'3'\n"),
    ("from sys import stdin\nprint(stdin.readline(), stdin.readline())", TWO, "3 4\n"),
    ("from sys import stdin\nprint(repr(stdin.read()))", TWO, "'3\\n4\\n'\n"),
    ("from sys import stdin\nprint(stdin.readlines())", TWO, "['3', '4', '']\n"),
    ("from sys import stdin\nprint(input(), stdin.readline())", TWO, "3 3\n"),
    (
        "from sys import stdin\nprint(stdin.readline())\nstdin.readline(); stdin.readline()",
        ONE,
        None,
    ),
    ("from sys import *\nprint(repr(stdin.readline()))", ONE, "'3'\n"),
    ("print(repr(stdin.readline()))", ONE, "'3'\n"),
    (OWN_LOOP, BLANK, "1\n"),
    (OWN_ITER, TWO, "1\n1\n"),
    (INSIDE, ONE, "2\n"),
    ("import sys\ndata = sys.stdin.readline\nprint(int(data()) + int(data()))", TWO, "7\n"),
    ("import sys\nprint(input())\nsys.exit(0)", ONE, "3\n"),
    ("print(input())\nexit()", ONE, "3\n"),
    ("import sys\nsys.stdout.write(input() + '\\n')", ONE, "3\n"),
    ("import io, sys\nsys.stdin = io.StringIO('5\\n')\nprint(input())", ONE, "5\n"),
)
