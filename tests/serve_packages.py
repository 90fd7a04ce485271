"""More clients of a server than CI installs, each by its package: openai-agents, pydantic-ai, litellm, langchain-ollama, and with --npm FOLDER,
where they are installed, openai, ai with @ai-sdk/openai, and ollama of npm.

    python tests/serve_packages.py target/release/waterline [--npm FOLDER]
"""

import argparse
import os
import pathlib
import subprocess
import tempfile

from serve_common import server, write_table

# litellm would fetch a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

ASK = "My name is Anna. Hello!"
NODE = """
import OpenAI from "openai";
import { generateText, streamText, generateObject, jsonSchema } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { Ollama } from "ollama";
const base = process.argv[2], ask = "My name is Anna. Hello!";
const check = (name, text) => { if (!text.includes("Anna")) throw new Error(name + ": " + text); console.log(name); };
const openai = new OpenAI({ baseURL: base + "/v1", apiKey: "none" });
check("npm openai, responses", (await openai.responses.create({ model: "m", input: ask, temperature: 0 })).output_text);
let text = "";
for await (const event of await openai.responses.create({ model: "m", input: ask, temperature: 0, stream: true }))
  if (event.type === "response.output_text.delta") text += event.delta;
check("npm openai, streamed", text);
check("npm openai, chat", (await openai.chat.completions.create({ model: "m", messages: [{ role: "user", content: ask }], temperature: 0 })).choices[0].message.content);
const vercel = createOpenAI({ baseURL: base + "/v1", apiKey: "none" });
check("npm ai", (await generateText({ model: vercel("m"), prompt: ask, temperature: 0 })).text);
text = "";
for await (const part of streamText({ model: vercel("m"), prompt: ask, temperature: 0 }).textStream) text += part;
check("npm ai, streamed", text);
const ollama = new Ollama({ host: base });
check("npm ollama", (await ollama.chat({ model: "m", messages: [{ role: "user", content: ask }], options: { temperature: 0 } })).message.content);
text = "";
for await (const part of await ollama.chat({ model: "m", messages: [{ role: "user", content: ask }], options: { temperature: 0 }, stream: true })) text += part.message.content;
check("npm ollama, streamed", text);
"""


def openai_agents(base):
    from agents import Agent, ModelSettings, Runner, set_default_openai_client, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=base + "/v1", api_key="none"), use_for_tracing=False)
    agent = Agent(name="a", instructions="You are kind.", model="m", model_settings=ModelSettings(temperature=0))
    return Runner.run_sync(agent, ASK).final_output


def pydantic_ai(base):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIResponsesModel("m", provider=OpenAIProvider(base_url=base + "/v1", api_key="none"))
    return Agent(model, model_settings={"temperature": 0}).run_sync(ASK).output


def litellm_package(base):
    import litellm

    messages = [{"role": "user", "content": ASK}]
    found = [litellm.completion(model="openai/m", api_base=base + "/v1", api_key="none", messages=messages, temperature=0).choices[0].message.content]
    found.append(litellm.completion(model="ollama_chat/m", api_base=base, messages=messages, temperature=0).choices[0].message.content)
    found.append(litellm.completion(model="anthropic/m", api_base=base, api_key="none", messages=messages, temperature=0).choices[0].message.content)
    found.append(litellm.responses(model="openai/m", api_base=base + "/v1", api_key="none", input=ASK, temperature=0).output[0].content[0].text)
    assert all("Anna" in text for text in found), found
    return found[0]


def litellm_full_context(base):
    """A model with a small context."""
    import litellm

    long = [{"role": "user", "content": "tea " * 200}]
    for model, place in (("openai/m", base + "/v1"), ("anthropic/m", base)):
        try:
            litellm.completion(model=model, api_base=place, api_key="none", messages=long, max_retries=0)
        except litellm.ContextWindowExceededError:
            continue
        raise AssertionError(f"{model}: no ContextWindowExceededError")
    return "Anna"


def langchain_ollama(base):
    from langchain_ollama import ChatOllama

    chat = ChatOllama(model="m", base_url=base, temperature=0)
    streamed = "".join(chunk.content for chunk in chat.stream(ASK))
    assert "Anna" in streamed, streamed
    return chat.invoke(ASK).content


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--npm", help="a folder with node_modules")
    options = parser.parse_args()
    problems = 0

    def attempt(client, base):
        try:
            text = client(base)
            assert "Anna" in text, text
            print(client.__name__, flush=True)
            return 0
        except Exception as problem:
            print(f"{client.__name__}: {type(problem).__name__}: {str(problem)[:600]}", flush=True)
            return 1

    with tempfile.TemporaryDirectory() as folder:
        write_table(pathlib.Path(folder))
        with server(options.program, folder, "--context", "64") as base:
            problems += attempt(litellm_full_context, base)
    with server(options.program, "--exact", seconds=900) as base:
        for client in (openai_agents, pydantic_ai, langchain_ollama, litellm_package):
            problems += attempt(client, base)
        if options.npm:
            script = os.path.join(options.npm, "serve_packages.mjs")
            with open(script, "w") as file:
                file.write(NODE)
            problems += subprocess.run(["node", script, base]).returncode != 0
    print(f"{problems} problems")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
