"""Programs that SGLang's own frontend and lmnb run alike. `python upstream_programs.py URL` runs them on the former.

The two differ in the name that is imported, and in nothing below.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def run_all(sgl: Any, backend: Any) -> dict[str, Any]:
    """What the programs give, as plain values."""
    sgl.set_default_backend(backend)
    found: dict[str, Any] = {}

    @sgl.function
    def few_shot(s: Any, question: str) -> None:
        s += "Q: What is the capital of Italy?\nA: Rome\n"
        s += "Q: What is the capital of Spain?\nA: Madrid\n"
        s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n", temperature=0, max_tokens=8)

    state = few_shot.run(question="What is the capital of France?")
    found["few_shot"] = state["answer"]
    found["few_shot_meta"] = state.get_meta_info("answer")["finish_reason"]["type"]
    rows = [{"question": f"What is the capital of {country}?"} for country in ("Japan", "England", "Italy")]
    found["batch"] = [one["answer"] for one in few_shot.run_batch(rows)]

    @sgl.function
    def choose(s: Any, statement: str) -> None:
        s += statement + " is" + sgl.select("a", [" a fruit", " a city", " an animal"])

    found["select"] = [choose.run(statement=word)["a"] for word in ("An apple", "London", "A horse")]

    @sgl.function
    def address(s: Any) -> None:
        s += "The IP address of the local machine is " + sgl.gen(
            "ip", temperature=0, regex=r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
        )

    found["regex"] = address.run()["ip"]

    @sgl.function
    def numbers(s: Any) -> None:
        s += "Hours in a day: " + sgl.gen_int("hours", temperature=0, max_tokens=6) + "\n"

    found["int"] = numbers.run()["hours"]

    @sgl.function
    def tips(s: Any) -> None:
        s += sgl.user("Two tips for sleeping well.")
        forks = s.fork(2)
        for index, fork in enumerate(forks):
            fork += sgl.assistant(f"Tip {index + 1}: " + sgl.gen("tip", temperature=0, max_tokens=12, stop="."))
        forks.join()
        s += sgl.assistant("Both tips: " + str(len(s["tip"])))

    state = tips.run()
    found["fork"] = state["tip"]
    found["messages"] = state.messages()

    @sgl.function
    def streamed(s: Any) -> None:
        s += "One, two, three," + sgl.gen("x", temperature=0, max_tokens=8)

    state = streamed.run(stream=True)
    found["stream"] = "".join(state.text_iter("x"))
    return found


if __name__ == "__main__":
    import sglang

    endpoint = sglang.RuntimeEndpoint(sys.argv[1], api_key=sys.argv[2], chat_template_name="chatml")
    found_here = run_all(sglang, endpoint)
    endpoint.flush_cache()
    print(json.dumps({"version": sglang.__version__, "found": found_here}))
