"""An OpenAI client with no tools of its own: the server lends its model those that are registered there.

python chat_with_tools.py MODEL QUESTION [SERVER]
"""

import sys

from openai import OpenAI

if len(sys.argv) < 3:
    sys.exit(__doc__)
model, question, server = [*sys.argv[1:], "http://127.0.0.1:48911"][:3]

with OpenAI(base_url=f"{server}/v1", api_key="none") as client:
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}])
    for call in getattr(answer, "patchbay", {}).get("calls", []):  # what the server did meanwhile; other clients need not look
        print(f"  {call['name']}({call['arguments']}) -> {call['content']}")
    print(answer.choices[0].message.content)
