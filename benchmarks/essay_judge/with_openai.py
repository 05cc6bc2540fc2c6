"""The same judge on OpenAI's SDK, as one writes it by hand: same prompts, branches side by side, one choice of two.

The choice is made by the likeliest first token, since the API tells no likelihood of a given text.
"""

from __future__ import annotations

import asyncio
import json

from benchmarks.essay_judge.task import DIMENSIONS, VERDICT


async def ask(client, model, messages, **options):
    reply = await client.chat.completions.create(model=model, messages=messages, temperature=0, **options)
    return reply.choices[0]


async def choose(client, model, messages, choices):
    answer = await ask(client, model, messages, max_tokens=1, logprobs=True, top_logprobs=20)
    likely = {}
    for token in answer.logprobs.content[0].top_logprobs:
        likely.setdefault(token.token.strip(), token.logprob)
    return max(choices, key=lambda choice: likely.get(choice, float("-inf")))


async def judge_dimension(client, model, messages, dimension):
    question = {"role": "user", "content": f"Judge its {dimension} in one sentence. Then write END."}
    answer = await ask(client, model, [*messages, question], max_tokens=48, stop=["END"])
    return answer.message.content


async def judge(client, model, topic, essay):
    messages = [
        {"role": "system", "content": "You judge essays."},
        {"role": "user", "content": f"Essay:\n{essay}\n\nDoes this essay stray from {topic}?"},
    ]
    strays = await choose(client, model, messages, ["Yes", "No"])
    if strays == "Yes":
        return None
    messages.append({"role": "assistant", "content": strays})
    branches = [judge_dimension(client, model, messages, dimension) for dimension in DIMENSIONS]
    judgments = "\n".join(await asyncio.gather(*branches))
    question = f"Judgments:\n{judgments}\n\nSum them up and grade the essay, as JSON."
    messages.append({"role": "user", "content": question})
    schema = {"name": "verdict", "schema": VERDICT, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    answer = await ask(client, model, messages, max_tokens=96, response_format=wanted)
    return json.loads(answer.message.content)
