"""The judge as a program of lmnb's."""

from __future__ import annotations

import json

from benchmarks.essay_judge.task import DIMENSIONS, VERDICT
from lmnb import assistant, function, gen, select, system, user


@function
def judge(s, topic, essay):
    s += system("You judge essays.")
    s += user(f"Essay:\n{essay}\n\nDoes this essay stray from {topic}?")
    s += assistant(select("strays", ["Yes", "No"]))
    if s["strays"] == "Yes":
        return None
    branches = s.fork(len(DIMENSIONS))
    for branch, dimension in zip(branches, DIMENSIONS, strict=True):
        branch += user(f"Judge its {dimension} in one sentence. Then write END.")
        branch += assistant(gen("judgment", max_tokens=48, stop="END", temperature=0))
    branches.join()
    judgments = "\n".join(s["judgment"])
    s += user(f"Judgments:\n{judgments}\n\nSum them up and grade the essay, as JSON.")
    s += assistant(gen("verdict", max_tokens=96, json_schema=VERDICT, temperature=0))
    return json.loads(s["verdict"])
