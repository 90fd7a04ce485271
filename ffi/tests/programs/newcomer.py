"""The program of a newcomer who has read only python/README.md."""

from waterline import Error, Model

with Model.builtin() as model:
    # A given seed gives the same text again; without one, each session draws a new seed.
    def story(**params):
        with model.session(**params) as session:
            session.feed(model.tokenize("Once upon a time"))
            return "".join(session.generate(max_tokens=30))

    assert story(seed=1) == story(seed=1)

    with model.session(temperature=0) as session:
        history = [{"role": "user", "content": "My name is Anna."}]
        for question in ("What is my name?", "Thank you!"):
            answer = session.say(history)
            text = "".join(answer)
            print(text)
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": question}]
        assert answer.prompt_tokens < 20, "only what is new is read"
        assert answer.tokens / answer.seconds > 0
        print(session.sampler["temperature"], session.messages == history[:-1])
    try:
        Model("missing.gguf")
    except Error as error:
        print(error.status)
