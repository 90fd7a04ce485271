"""Conversations that train memory: a user tells facts, talks about other things for a long time, then asks for the facts.

Also requests for stories in many wordings, and small talk with honest answers. All text is made here or by `gen_synth.py`; every value to
remember is drawn at random, so a question can only be answered by remembering.

Run directly it prints samples: memory_chat.py GEN_SYNTH [COUNT [SEED]]
"""

import random
import re
import runpy
import sys

import unlike
from facts import UNKNOWN as UNTOLD
from facts import Fact, Subject, changed, digits, make_facts, named, subjects, untold, upper
from free import ABOUT, EVERYTHING, FORGET, KEEP, LOST, STILL, forgotten, loosened, phrase, recased, told, told_loosely, yours
from phrases import AFTER_STORY, ANY_STORY, HELLO, MORE, PASSAGE_ACK, SMALL_TALK, STORY_ASK, UNKNOWN
from skills import HONEST, skill, sum_
from words import WORDS


def load_synth(path, seed):
    """Returns the definitions of gen_synth.py, seeded, without its output, and with longer lists."""
    argv = sys.argv
    sys.argv = [str(path), "/dev/null", "--stories", "0", "--chats", "0", "--recall", "0", "--seed", str(seed)]
    try:
        synth = runpy.run_path(str(path))
    finally:
        sys.argv = argv
    for name, more in MORE.items():
        synth[name].extend(word.replace("-", " ") for word in more)
    return synth


# Subjects whose questions resemble those of another subject.
CONFUSED = ("favorite color", "favorite food", "secret secret code", "secret pin", "secret code word", "feel")

UNLIKE = 0.35  # share of the conversations with text unlike talk between telling and asking
ASPECTS = {"relative", "count", "lives", "age", "job", "likes", "plays", "car", "speaks", "secret", "color", "favorite", "spot", "when", "thing"}


def about(fact):
    """Returns the person or thing that a fact is about: two facts that share a word here could be confused."""
    return set(fact.key.split()) - ASPECTS or {fact.key}


def clashes(key, known):
    """Returns whether a question about `key` could refer to a known fact."""
    kind = key.split(" ")[0]
    return (key in known or key in CONFUSED
        or kind in ("pet", "relative", "my") and any(k.split(" ")[0] in ("pet", "relative", "my") for k in known))


class Writer:
    """Draws conversations. A conversation is a list of (user, assistant, whether the answer must be remembered).

    pairs: (user, assistant) exchanges; texts: passages that the user may paste; licences: more such passages; all of them only lengthen
    conversations. words: words to be spelled.
    """

    def __init__(self, synth, seed, pairs=(), texts=(), words=WORDS, licences=()):
        self.r, self.synth, self.pairs, self.texts, self.words, self.licences = random.Random(seed), synth, pairs, texts, words, licences

    def sentences(self, clauses):
        """Joins clauses into natural text: as sentences, or with "and"."""
        r, out = self.r, ""
        for i, clause in enumerate(clauses):
            if i and r.random() < 0.45 and not clause.startswith(("please", "remember", "keep", "don't", "call")):
                out += r.choice([" and ", " and ", ", and ", ", "]) + clause
            else:
                out += (r.choice([". ", ". ", "! "]) if i else "") + clause[0].upper() + clause[1:]
        return out + r.choice([".", ".", ".", "!", ""])

    def small_talk(self):
        r = self.r
        if r.random() < 0.5:
            q, a = self.synth["smallqa"]()
            return self.cased(q), a, False
        q, a = r.choice(SMALL_TALK)
        return self.cased(r.choice(q)), r.choice(a), False

    def cased(self, text):
        """Returns a request in the case that some people type."""
        k = self.r.random()
        return text.upper() if k < 0.08 else text.lower() if k < 0.16 else text

    def story(self):
        """Returns a request and a story about its topic, and sometimes questions about the story."""
        r, s = self.r, self.synth
        text, topic, qa, hero, friend = s["story"]()
        an = s["an"]
        thing = re.search(r"\b(?:%s) (?:%s)\b" % ("|".join(s["COL"]), "|".join(s["OBJ"])), text)
        bare = an(thing.group().split(" ", 1)[1]) if thing else None
        thing = an(thing.group()) if thing else None
        food = next((f for f in s["FOOD"] if re.search(rf"\b{f}\b", text)), None)
        place = next((p for p in s["PLACE"] if p in text), None)
        who = r.choice([an(hero.kind), an(hero.kind), f"{an(hero.adj)} {hero.kind}", f"{an(hero.kind)} named {hero.name}", f"{an(hero.kind)} called {hero.name}", hero.name])
        other = r.choice([an(friend.kind), f"{an(friend.kind)} named {friend.name}", friend.name])
        forms = [who, topic]
        if thing:
            forms += [f"{who} and {thing}"] * 3 + [f"{who} with {thing}", thing, f"{who}, {other} and {thing}", f"{thing} and {who}", f"{who} who has {thing}"]
            forms += [f"{who} and {bare}"] * 3 + [f"{who} with {bare}", bare, f"{who} who has {bare}", f"{bare} and {who}"]
        if food:
            forms += [f"{who} and {an(food)}"] * 2 + [f"{who} who likes {an(food)}", an(food)]
        if friend.kind != hero.kind:
            forms += [f"{who} and {other}"] * 4
        if place:
            forms += [f"{who} at {place}", f"{who} in {place}" if place in ("the park", "the garden", "the forest", "the meadow") else f"{who} and {place}"]
        turns = [(self.cased(r.choice(ANY_STORY) if r.random() < 0.15 else r.choice(STORY_ASK).format(r.choice(forms))), text, False)]
        if r.random() < 0.35:
            turns += [(q, a, False) for q, a in r.sample(qa, r.randint(1, min(3, len(qa))))]
        if r.random() < 0.15:
            q, a = AFTER_STORY[0]
            turns.append((r.choice(q), r.choice(a), False))
        return turns

    def passage(self, limit=0):
        """The user pastes a passage of a book or another text, at most `limit` characters if that is more than 2,500."""
        r, text = self.r, self.r.choice(self.texts)
        start = r.randrange(max(1, len(text) - 300))
        start = text.find(" ", start) + 1
        size = r.randint(200, 2500)
        if limit > 3000 and r.random() < 0.5:
            size = int(2500 * (limit / 2500) ** r.random())
        while len(text) < start + size:
            text += r.choice(["\n\n", "\n", " "]) + r.choice(self.texts)
        text = text[start : start + size].rsplit(" ", 1)[0]
        if r.random() < 0.4:  # as one line
            text = " ".join(text.split())
        return r.choice(["Here is something I read: ", "Listen to this. ", "I am reading a book. It says: ", "", "", "Read this:\n\n", "Here is a long text. ", "Please read this text: "]) + text, r.choice(PASSAGE_ACK), False

    def unlike(self, chars):
        """Returns this many characters of text unlike talk, in one message or in up to 45."""
        r = self.r
        count = 1 if r.random() < 0.5 else r.randint(2, max(2, min(45, int(chars // 60))))
        turns = []
        for _ in range(count):
            size = max(40, int(chars / count * r.uniform(0.7, 1.3)))
            text = unlike.text(r, size, self.words, self.licences)
            if r.random() < 0.6:  # as one line
                text = " ".join(text.split())
            turns.append((r.choice(["", "", "", "", "Here is a text: ", "Read this: ", "Look at this: ", "Here is more: ", "This is long. "]) + text, r.choice(PASSAGE_ACK), False))
        return turns

    def filler(self, chars):
        turns, size = [], 0
        while size < chars:
            kind = self.r.random()
            if kind < 0.45:
                new = self.story()
            elif kind < 0.5 and self.pairs:
                new = [(*self.r.choice(self.pairs), False)]
            elif kind < 0.65 and self.texts:
                new = [self.passage(chars - size)]
            else:
                new = [self.small_talk() if self.r.random() < 0.6 else self.skill() for _ in range(self.r.randint(1, 3))]
            if size and size + sum(len(q) + len(a) for q, a, _ in new) > chars + 600:
                new = [self.small_talk()]
            turns += new
            size += sum(len(q) + len(a) for q, a, _ in new)
        return turns

    def memory(self, low, high):
        """Returns a conversation whose questions come low..high characters (log-uniform) after the facts they ask for."""
        r = self.r
        if r.random() < 0.35:
            return self.free(low, high)
        facts = make_facts(r)
        told = [k for k in ("name", "pet", "password") if r.random() < 0.75] or ["name"]
        told += [k for k in ("color", "town", "food", "job", "age", "relative") if r.random() < 0.13]
        wide = {s.key: s for s in subjects(r, r.choice([0, 0, 1, 1, 2, 3])) if not clashes(s.key, facts)}
        facts |= {k: s.draw() for k, s in wide.items()}
        told += list(wide)
        r.shuffle(told)
        if "name" in told and r.random() < 0.6:
            told.remove("name")
            told.insert(0, "name")
        lower = r.random() < 0.1
        turns, groups = [], [told]
        if len(told) > 1 and r.random() < 0.35:  # over two or more turns
            cut = r.randint(1, len(told) - 1)
            groups = [told[:cut], told[cut:]]
            if r.random() < 0.3:
                groups = [[k] for k in told]
        if r.random() < 0.15:
            turns.append(self.small_talk())
        for i, group in enumerate(groups):
            text = self.sentences([r.choice(facts[k].tell) for k in group])
            if not i and r.random() < 0.35:
                text = r.choice(HELLO) + r.choice(["! ", ", ", ". "]) + text
            if r.random() < 0.2:
                text += r.choice([" Please remember that.", " Can you remember that?", " Remember this.", " Don't forget it."])
            turns.append((text, self.acknowledge([facts[k] for k in group]), False))
            if i + 1 < len(groups) and r.random() < 0.3:
                turns += [self.small_talk() for _ in range(r.randint(1, 2))]
        chars = low * (high / low) ** r.random()
        ask = [k for k in told] + (["kind"] if "pet" in told else [])
        if chars > 1500 and r.random() < 0.4:  # some questions in between too
            part = r.uniform(0.2, 0.8)
            turns += self.filler(chars * part) + self.questions(facts, r.sample(ask, min(len(ask), r.randint(1, 2))), told)
            chars *= 1 - part
        may_change = [k for k in told if k in wide or k in ("name", "town", "job", "age", "color", "food")]
        if may_change and r.random() < 0.3:
            part = r.random()
            turns += self.filler(chars * part)
            chars *= 1 - part
            key = r.choice(may_change)
            facts[key], clause = changed(r, wide.get(key) or Subject(key, lambda: make_facts(r)[key]), facts[key])
            turns.append((self.sentences([clause]), self.take_note([facts[key]], True), True))
        turns += self.unlike(chars) if r.random() < UNLIKE else self.filler(chars)
        if turns[-1][1] in PASSAGE_ACK and r.random() < 0.3:  # the first question ends the message with the pasted text
            question, answer = facts[ask[0]].question(r)
            turns[-1] = (turns[-1][0] + r.choice(["\n\n", " ", "\n"]) + question, answer, True)
        r.shuffle(ask)
        turns += self.questions(facts, ask if r.random() < 0.6 else ask[: r.randint(1, len(ask))], told)
        if r.random() < 0.15:
            turns.append(self.small_talk())
        if lower:
            turns = [(q.lower() if not any(ch.isdigit() for ch in q) and self.values_lower(facts, q) else q, a, m) for q, a, m in turns]
        return turns

    @staticmethod
    def values_lower(facts, question):
        """Returns whether a user's turn can be lower-cased without changing a value that will be asked for."""
        return not any(w in question for f in facts.values() for w in f.answer.rstrip(".").split() if w[0].isupper() and w not in ("Your", "You", "The"))

    def acknowledge(self, facts):
        r = self.r
        name = next((f for f in facts if f.key == "name"), None)
        if name and r.random() < 0.75:
            out = name.ack
        else:
            out = r.choice(["Thank you.", "Okay.", "Good to know.", "All right.", "Thank you for telling me."])
        others = [f for f in facts if f.key != "name" and f.ack]
        if others and r.random() < 0.7:
            out += " " + " ".join(f.ack for f in others[: r.choice([1, 1, 2, 3])])
        elif r.random() < 0.6:
            out += " " + r.choice(["I will remember that.", "I will keep that in mind.", "I will not forget it.", "What would you like to do?", "How can I help you?"])
        return out

    def questions(self, facts, keys, told):
        r, turns = self.r, []
        for key in keys:
            turns.append((*facts[key].question(r), True))
            if r.random() < 0.12:
                turns.append(self.small_talk())
        if len(keys) > 1 and r.random() < 0.08:
            pair = r.sample([k for k in keys if k != "kind"] or keys, min(2, len([k for k in keys if k != "kind"]) or 1))
            if len(pair) == 2:
                q = [facts[k].ask[0] for k in pair]
                turns.append((f"{q[0][:-1]} and {q[1][0].lower() + q[1][1:]}", " ".join(facts[k].answer for k in pair), True))
        if r.random() < 0.15:
            other = subjects(r, 1)[0]
            if not clashes(other.key, facts):
                turns.insert(r.randint(0, len(turns)), (r.choice(other.draw().ask), r.choice(UNTOLD), True))
        near = [s for k in told if (s := untold(r, k, facts)) and s.key not in CONFUSED and not {"pet", "relative"} & facts.keys()]
        if near and r.random() < 0.3:
            turns.insert(r.randint(0, len(turns)), (r.choice(r.choice(near).draw().ask), r.choice(UNTOLD), True))
        silent = [k for k in UNKNOWN if k in facts and k not in told]
        if silent and r.random() < 0.1:
            key = r.choice(silent)
            turns.insert(r.randint(0, len(turns)), (r.choice(facts[key].ask[:5]), r.choice(UNKNOWN[key]), True))
        return turns

    def take_note(self, facts, anew=False):
        """Returns the assistant's reaction to facts of any kind."""
        r, kind = self.r, self.r.random()
        now = " now" if anew and r.random() < 0.7 else ""
        if facts[0].key == "name" and (anew or kind < 0.6):
            out = facts[0].ack
            if anew and kind < 0.5:
                out = r.choice(["Okay, {} now.", "I will remember that {} now.", "Thank you, {} now."]).format(facts[0].said())
            if len(facts) > 1 and r.random() < 0.5:
                out += f" I will remember that {facts[1].said()}."
            return out
        if kind < 0.5 and len(facts) < 4:
            return "I will remember that " + " and that ".join(f.said() for f in facts) + f"{now}."
        if kind < 0.7 and len(facts) < 3:
            return "Okay, " + " and ".join(f.said() for f in facts) + f"{now}."
        if kind < 0.8 and facts[0].ack:
            return facts[0].ack
        return r.choice(["Thank you for telling me. I will remember that.", "I will remember that.", "Thank you, I will keep that in mind.", "Okay, I will not forget it.", "Good to know. I will remember it."])

    def facts(self):
        """Returns a short conversation about facts of many kinds: several in a sentence, asked for at once or later, told again when they
        change."""
        r = self.r
        if r.random() < 0.07:
            return self.renamed()
        known, turns = {}, []
        waiting = subjects(r, r.choice([1, 1, 2, 2, 2, 3, 3, 4, 5]))
        every = {s.key: s for s in waiting}
        if r.random() < 0.15:
            turns.append(self.small_talk())
        while waiting:
            group, waiting = waiting[: (n := r.choice([1, 1, 2, 2, 3]))], waiting[n:]
            told = [s.draw() for s in group]
            known |= {f.key: f for f in told}
            text = self.sentences([r.choice(f.tell) for f in told])
            if r.random() < 0.1:
                text = r.choice(HELLO) + r.choice(["! ", ", ", ". "]) + text
            if r.random() < 0.3:
                question, answer = r.choice(told).question(r)
                turns.append((text + (" " if text[-1] in ".!" else ". ") + upper(question), answer, True))
            else:
                turns.append((text, self.take_note(told), True))
            if r.random() < 0.2:
                turns.append(self.small_talk() if r.random() < 0.5 else self.skill())
            if r.random() < 0.25:
                turns.append((*r.choice(list(known.values())).question(r), True))
            if r.random() < 0.35:
                key = r.choice(list(known))
                known[key], clause = changed(r, every[key], known[key])
                text = self.sentences([clause])
                if r.random() < 0.2:
                    question, answer = known[key].question(r)
                    turns.append((text + (" " if text[-1] in ".!" else ". ") + upper(question), answer, True))
                else:
                    turns.append((text, self.take_note([known[key]], True), True))
                    if r.random() < 0.6:
                        turns.append((*known[key].question(r), True))
        if r.random() < 0.3:
            turns += self.filler(100 * 15 ** r.random())
        turns += self.questions(known, r.sample(list(known), r.randint(1, len(known))), list(known))
        return turns

    def free(self, low=0, high=0):
        """Returns a conversation about freely told facts, in any case, some of which are to be forgotten; low..high characters before the
        questions."""
        r = self.r
        style = r.choices(["", "lower", "upper"], [0.62, 0.26, 0.12])[0]
        known, taken, turns = {}, set(), []

        def say(user, answer, style=style, values=True):
            if user[-1] in ".!?" and r.random() < (0.5 if style == "lower" else 0.1):
                user = user.rstrip(".!?")
            if style:
                user, answer = recased(style, user, answer, known.values()) if values else (user.lower() if style == "lower" else user.upper(), answer)
            turns.append((user, answer, True))

        def ask(key):
            question, answer = known[key].question(r)
            other = not style and r.random() < 0.12
            say(loosened(r, question), answer, r.choice(["lower", "upper"]) if other else style, not other)

        for _ in range(r.choice([1, 1, 1, 2, 2, 3])):
            if r.random() < 0.75:
                clauses, facts = told(r)
                text = self.sentences([told_loosely(r, r.choice(clauses))])
            else:
                facts = [s.draw() for s in subjects(r, r.choice([1, 1, 2]))]
                text = self.sentences([r.choice(f.tell) for f in facts])
            if any(about(f) & taken for f in facts):
                continue
            known |= {f.key: f for f in facts}
            taken |= set().union(*map(about, facts))
            if r.random() < 0.12:
                text = r.choice(HELLO) + r.choice(["! ", ", ", ". "]) + text
            if r.random() < 0.25:
                question, answer = r.choice(facts).question(r)
                say(text + (" " if text[-1] in ".!" else ". ") + upper(loosened(r, question)), answer)
            else:
                say(text, self.take_note(facts))
            if r.random() < 0.15:
                turns.append(self.small_talk() if r.random() < 0.5 else self.skill())
            if r.random() < 0.35:
                ask(r.choice(list(known)))
        if r.random() < (0.1 if low else 0.3):
            self.forgetting(known, say, ask)
        if low:
            chars = low * (high / low) ** r.random()
            turns += self.unlike(chars) if r.random() < 2 * UNLIKE else self.filler(chars)
        elif r.random() < 0.3:
            turns += self.filler(60 * 20 ** r.random()) if r.random() < 0.6 else self.unlike(60 * 20 ** r.random())
        for key in r.sample(list(known), r.randint(1, len(known))):
            ask(key)
        if r.random() < 0.25:
            near = [s for k in known if (s := untold(r, k, known)) and not about(s) & taken]
            if near:
                say(loosened(r, r.choice(r.choice(near).draw().ask)), r.choice(UNTOLD))
        return turns

    def forgetting(self, known, say, ask):
        """The user asks to forget or keep a fact, or asks whether it is kept."""
        r = self.r
        named = {k: p for k, f in known.items() if (p := phrase(f))}
        if not named:
            return
        key = r.choice(sorted(named, key=lambda k: not k.startswith(("password", "secret")))[: 2])
        what, kind = named[key], r.random()
        if kind < 0.6:
            say(r.choice(FORGET).format(what), f"Okay, I have forgotten {yours(what)}.")
            known[key] = forgotten(known[key])
            if r.random() < 0.7:
                ask(key)
            if key.startswith(("password", "secret")) and r.random() < 0.4:
                noun, value = key.removeprefix("secret "), digits(r, 3, 7)
                known[key] = Fact(key, [], known[key].ask, f"Your {noun} is {value}.")
                say(self.sentences([r.choice([f"my new {noun} is {value}", f"my {noun} is {value} now", f"now my {noun} is {value}", f"the {noun} is {value}"])]), self.take_note([known[key]], True))
        elif kind < 0.65 and (whom := [k.split()[-1] for k in known if k.startswith("relative ")]):
            whom = r.choice(whom)
            say(r.choice(ABOUT).format(f"my {whom}"), f"Okay, I have forgotten your {whom}.")
            for k in known:
                if whom in k.split():
                    known[k] = forgotten(known[k])
        elif kind < 0.72:
            say(r.choice(EVERYTHING), "Okay, I have forgotten everything you told me.")
            for k in known:
                known[k] = forgotten(known[k])
        elif kind < 0.8:
            say(r.choice(KEEP).format(what), r.choice(["I will not forget it.", f"I will not forget {yours(what)}."]))
        elif kind < 0.9:
            say(r.choice(LOST).format(what), known[key].answer)
        else:
            say(r.choice(STILL).format(what), f"I have not forgotten it. {known[key].answer}")

    def renamed(self):
        """The user tells a name, then another one, and asks for it."""
        r, subject = self.r, named(self.r)
        first = subject.draw()
        second, clause = changed(r, subject, first)
        turns = [(self.sentences([r.choice(first.tell)]), self.take_note([first]), True)]
        if r.random() < 0.5:
            turns += [self.small_talk() if r.random() < 0.5 else self.skill() for _ in range(r.randint(1, 3))]
        if r.random() < 0.3:
            turns.append((*first.question(r), True))
        turns.append((self.sentences([clause]), self.take_note([second], True), True))
        if r.random() < 0.6:
            turns.append((*second.question(r), True))
        return turns

    def skill(self):
        """Returns a sum, a count, a word to spell, a question beyond the model, or a message that it cannot understand."""
        if self.r.random() < 0.06:
            return self.odd()
        if self.r.random() < 0.4:
            return *self.sum(), False
        question, answer, _ = skill(self.r, self.words)
        return self.cased(question), answer, False

    def sum(self):
        question, answer = sum_(self.r)
        return self.cased(question), answer

    def odd(self):
        return unlike.odd(self.r, self.words), f"I do not understand that. {HONEST}", False

    def sums(self):
        """Returns a few sums and differences in a row. Exact answers are marked like remembered ones."""
        turns = [(*self.sum(), True) for _ in range(self.r.randint(1, 8))]
        if self.r.random() < 0.15:
            turns.insert(0, self.small_talk())
        return turns

    def skills(self):
        r, turns = self.r, []
        for _ in range(r.randint(1, 6)):
            kind = r.random()
            turns.append(skill(r, self.words) if kind < 0.75 else self.odd() if kind < 0.8 else self.small_talk() if kind < 0.9 else (*self.sum(), True))
        if r.random() < 0.08:
            turns += self.story()
            turns.append(skill(r, self.words))
        return turns

    def request(self):
        """Returns a short conversation about stories and small talk, with nothing to remember."""
        r, turns = self.r, []
        if r.random() < 0.3:
            turns += [self.small_talk() for _ in range(r.randint(1, 3))]
        if r.random() < 0.7:
            turns += self.story()
        if r.random() < 0.3:
            turns += [self.small_talk() for _ in range(r.randint(1, 3))]
        if r.random() < 0.08:
            facts = make_facts(r)
            key = r.choice(list(UNKNOWN))
            turns.insert(r.randint(0, len(turns)), (r.choice(facts[key].ask[:5]), r.choice(UNKNOWN[key]), False))
        return turns or [self.small_talk()]


def main():
    writer = Writer(load_synth(sys.argv[1], int((sys.argv[3:] or [1])[0])), int((sys.argv[3:] or [1])[0]))
    for i in range(int((sys.argv[2:] or [3])[0])):
        for q, a, remembered in [lambda: writer.memory(40, 800), writer.facts, writer.free, writer.sums, writer.skills][i % 5]():
            print(f"> {q}\n{'*' if remembered else ' '} {a[:200]}")
        print("----")


if __name__ == "__main__":
    main()
