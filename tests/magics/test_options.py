"""First lines: heads, words, expansion, and what is said of mistakes."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from lmnb.magics import options
from lmnb.magics.lmprog import LmprogMagics, option_parser


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ("", (None, "", "")),
        ("-t 0.5", (None, "", "-t 0.5")),
        ("judge", ("judge", "", "")),
        (" judge  --seed 3", ("judge", "", "--seed 3")),
        ("judge(essay, n=3) -t 0", ("judge", "essay, n=3", " -t 0")),
        ("judge (essay)", ("judge", "essay", "")),
        ("f(a=')', b={'x': (1, 2)}, c=\"(\") -o x", ("f", "a=')', b={'x': (1, 2)}, c=\"(\"", " -o x")),
        ("прог(эссе)", ("прог", "эссе", "")),
    ],
)
def test_heads(line, head):
    assert options.split_head("%%lmprog", line) == head


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("judge(essay", "never closed"),
        ("judge(essay='", "never closed"),
        ("class", "keyword"),
        ("s", "state's own name"),
        ("my-prog -t 1", "not a program's name"),
    ],
)
def test_bad_heads_are_usage_errors(line, words):
    with pytest.raises(UsageError, match=words):
        options.split_head("%%lmprog", line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--temprature 0.3", "Did you mean --temperature"),
        ("--max-token 3", "Did you mean --max-tokens"),
        ("-t hot", "not a number of at least 0"),
        ("-t -1", "not a number of at least 0|expected one argument"),
        ("-t nan", "not a number"),
        ("--max-tokens 0", "at least 1"),
        ("--seed x", "invalid int"),
        ("--view movie", "widget"),
        ("-o 3x", "not a variable's name"),
        ("-m", "expected one argument"),
        ("judge", "unexpected word 'judge'"),
    ],
)
def test_bad_options_are_one_line_usage_errors(line, words):
    with pytest.raises(UsageError, match=words) as caught:
        option_parser().parse(options.split("%%lmprog", line))
    assert "\n" not in str(caught.value)
    assert "%%lmprog" in str(caught.value)


def test_words_follow_the_shells_quotes():
    assert options.split("%x", "-m '/models/my model' --name \"a b\"") == ["-m", "/models/my model", "--name", "a b"]
    with pytest.raises(UsageError, match="No closing quotation"):
        options.split("%x", "-m 'open")


def test_expansion_follows_ipython():
    names = {"t": 0.5, "models": ["a"]}
    assert options.expand("-t $t -m {models[0]}", names) == "-t 0.5 -m a"
    assert options.expand("-m {unknown}", names) == "-m {unknown}"


def test_the_help_names_every_option():
    for name in option_parser().option_names():
        assert name in LmprogMagics.lmprog.__doc__
