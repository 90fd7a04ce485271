"""Facts of many kinds that a user may tell: wordings that tell them, ask for them, answer, and tell changed values.

Every value is drawn at random, so a question can only be answered by remembering. A `Subject` ("my brother's name") stays the same; each
call of its `draw` gives a `Fact` with a fresh value.
"""

from words import (ADJECTIVES, ANIMALS, COLLECT, COLORS, FAVORITES, FOODS, INSTRUMENTS, JOBS, LANGUAGES, NAMES, NUMBERS, PET_NAMES, PETS, PLACES, PLURALS,
    RELATIVES, SPOTS, STUDIES, THINGS, TOWNS, WORDS)


class Fact:
    """A fact to remember: ways to tell it (clauses that can be joined), ways to ask for it, the answer, a short acknowledgement.

    `anew`: ways to tell a new value; `also`: further questions, each with a separate answer.
    """

    def __init__(self, key, tell, ask, answer, ack="", anew=(), also=()):
        self.key, self.tell, self.ask, self.answer, self.ack, self.anew, self.also = key, tell, ask, answer, ack, list(anew), list(also)

    def question(self, r):
        """Returns (question, answer)."""
        if self.also and r.random() < 0.2:
            return r.choice(self.also)
        return r.choice(self.ask), self.answer

    def said(self):
        """Returns the answer as a clause: "your brother is called Tim"."""
        first, rest = self.answer.rstrip(".").split(" ", 1)
        return f"{first.lower() if first in ('You', 'Your', 'The') else first} {rest}"


class Subject:
    def __init__(self, key, draw):
        self.key, self.draw = key, draw


def an(word):
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def upper(text):
    return text[0].upper() + text[1:]


def invented(r):
    return "".join(r.choice("bdfgklmnprstvz") + r.choice("aeiou") for _ in range(r.randint(2, 3))).capitalize() + r.choice(["", "", "n", "s", "l", "k"])


def name(r):
    return invented(r) if r.random() < 0.3 else r.choice(NAMES)


def town(r):
    return invented(r) if r.random() < 0.2 else r.choice(TOWNS)


def digits(r, low=3, high=7):
    return "".join(r.choice("0123456789") for _ in range(r.randint(low, high)))


def clock(r):
    return r.choice([f"at {r.randint(1, 12)}:{r.choice(['00', '05', '10', '15', '20', '30', '40', '45', '50'])}", f"at {r.choice(NUMBERS[1:13])}", f"at {r.randint(1, 12)} o'clock",
        f"on {r.choice(FAVORITES['day'])}", f"on {r.choice(FAVORITES['day'])}", f"in {r.choice(FAVORITES['month'])}", f"on {r.randint(1, 28)} {r.choice(FAVORITES['month'])}"])


def relative(r):
    who = r.choice(RELATIVES)

    def draw():
        n = name(r)
        return Fact(f"relative {who}", [f"my {who} is called {n}", f"my {who} is called {n}", f"my {who}'s name is {n}", f"I have {an(who)} called {n}", f"I have {an(who)} named {n}", f"the name of my {who} is {n}",
            f"{n} is my {who}", f"my {who} is named {n}"],
            [f"What is my {who} called?", f"What is my {who}'s name?", f"What is the name of my {who}?", f"What's my {who}'s name?", f"Do you remember my {who}'s name?", f"what is my {who} called", f"What's my {who} called?"],
            f"Your {who} is called {n}.", r.choice([f"Please say hello to {n}.", f"{n} is a nice name."]), also=[(f"Who is {n}?", f"{n} is your {who}.")])
    return Subject(f"relative {who}", draw)


def thing_name(r):
    what = r.choice(["boat", "ship", "car", "doll", "village", "street", "school", "band", "robot", "bike", "company", "shop", "team", "club", "teddy bear", "house", "hotel", "book", "farm", "island"] + PETS * 2)
    key = ("thing " if what not in PETS else "pet ") + what

    def draw():
        n = invented(r) if r.random() < 0.4 else r.choice(PET_NAMES)
        return Fact(key, [f"my {what} is called {n}", f"my {what}'s name is {n}", f"the name of my {what} is {n}", f"I have {an(what)} called {n}", f"I have {an(what)} named {n}", f"my {what} is named {n}"],
            [f"What is my {what} called?", f"What is the name of my {what}?", f"What is my {what}'s name?", f"What's my {what} called?", f"Do you remember the name of my {what}?", f"what is my {what} called"],
            f"Your {what} is called {n}.", f"{n} is a lovely name for {an(what)}.")
    return Subject(key, draw)


def favorite(r):
    kind = r.choice(list(FAVORITES))
    spelt = "favorite" if r.random() < 0.75 else "favourite"

    def draw():
        v = r.choice(FAVORITES[kind])
        return Fact(f"favorite {kind}", [f"my {spelt} {kind} is {v}", f"my {spelt} {kind} is {v}", f"{v} is my {spelt} {kind}", f"the {kind} I like best is {v}"],
            [f"What is my {spelt} {kind}?", f"What's my {spelt} {kind}?", f"Which {kind} do I like best?", f"Do you remember my {spelt} {kind}?", f"what is my {spelt} {kind}", f"Tell me my {spelt} {kind}."],
            f"Your favorite {kind} is {v}.", f"{upper(v)} is a good choice.", anew=[f"my {spelt} {kind} is {v} now", f"I like {v} better now as {an(kind)}"])
    return Subject(f"favorite {kind}", draw)


def color(r):
    what = r.choice(["car", "bike", "bag", "house", "door", "hat", "coat", "umbrella", "phone", "sofa", "boat", "jacket", "shirt", "dress", "roof", "kite", "cup", "chair", "backpack", "scarf"])
    plural = r.random() < 0.15
    if plural:
        what = r.choice(["eyes", "shoes", "gloves", "curtains", "glasses", "boots"])
    spelt, be = "color" if r.random() < 0.7 else "colour", "are" if plural else "is"

    def draw():
        v = r.choice(COLORS)
        return Fact(f"color {what}", [f"my {what} {be} {v}", f"my {what} {be} {v}", f"I have {v} {what}" if plural else f"I have {an(v)} {what}", f"the {spelt} of my {what} is {v}"],
            [f"What {spelt} {be} my {what}?", f"What is the {spelt} of my {what}?", f"Which {spelt} {'do' if plural else 'does'} my {what} have?", f"what {spelt} {be} my {what}"], f"Your {what} {be} {v}.",
            f"{upper(v)} is a nice color.", anew=[f"I painted my {what} {v}"] if what in ("house", "door", "bike", "car", "boat", "roof", "chair") else [])
    return Subject(f"color {what}", draw)


def count(r):
    what = r.choice(PLURALS)

    def draw():
        n = r.choice(NUMBERS[2:13]) if r.random() < 0.6 else str(r.randint(2, 60))
        return Fact(f"count {what}", [f"I have {n} {what}", f"I have {n} {what}", f"I've got {n} {what}", f"I own {n} {what}" if what not in RELATIVE_PLURALS else f"I have {n} {what}"],
            [f"How many {what} do I have?", f"How many {what} have I got?", f"how many {what} do i have", f"Do you remember how many {what} I have?"], f"You have {n} {what}.", anew=[f"I have {n} {what} now", f"now I have {n} {what}"])
    return Subject(f"count {what}", draw)


RELATIVE_PLURALS = ("sisters", "brothers", "children", "friends", "cousins", "sons", "daughters", "uncles", "aunts")


def spot(r):
    what, plural = r.choice(THINGS), ""
    if r.random() < 0.2:
        what = r.choice(["keys", "glasses", "shoes", "tickets", "books", "cookies", "apples", "letters", "scissors"])
    be = "are" if what.endswith("s") and what not in ("glass",) else "is"

    def draw():
        v = r.choice(SPOTS)
        return Fact(f"spot {what}", [f"I put the {what} {v}", f"the {what} {be} {v}", f"my {what} {be} {v}", f"I left the {what} {v}", f"I hid the {what} {v}", f"I put my {what} {v}"],
            [f"Where {be} the {what}?", f"Where {be} my {what}?", f"Where did I put the {what}?", f"where {be} the {what}", f"Do you remember where the {what} {be}?"], f"The {what} {be} {v}.",
            anew=[f"I moved the {what}, {'they are' if be == 'are' else 'it is'} {v}", f"I put the {what} {v} now", f"the {what} {be} {v} now"])
    return Subject(f"spot {what}", draw)


def when(r):
    what = r.choice(["meeting", "party", "train", "bus", "flight", "exam", "concert", "lesson", "appointment", "wedding", "game", "dinner", "trip", "show", "test", "class", "birthday"])
    verb = {"train": "leaves", "bus": "leaves", "flight": "leaves", "lesson": "begins", "concert": "begins", "show": "begins", "class": "begins"}.get(what, "is")
    whose = r.choice(["my", "my", "the"]) if what != "birthday" else "my"

    def draw():
        v = clock(r) if what != "birthday" else r.choice([f"in {r.choice(FAVORITES['month'])}", f"on {r.randint(1, 28)} {r.choice(FAVORITES['month'])}", f"on {r.choice(FAVORITES['month'])} {r.randint(1, 28)}"])
        ask = f"When is {whose} {what}?" if verb == "is" else f"When does {whose} {what} {verb[:-1] if verb != 'leaves' else 'leave'}?"
        return Fact(f"when {what}", [f"{whose} {what} {verb} {v}"], [ask, ask, ask[:-1].lower(), f"Do you remember when {whose} {what} {verb}?"], f"{'Your' if whose == 'my' else 'The'} {what} {verb} {v}.",
            anew=[f"{whose} {what} {verb} {v} now", f"they moved {whose} {what}, it {verb} {v}"])
    return Subject(f"when {what}", draw)


def secret(r):
    what = r.choice(["phone number", "room number", "locker number", "flight number", "door code", "wifi password", "house number", "bank code", "ticket number", "lucky number", "magic word", "code word", "password", "password",
        "secret code", "pin", "user name", "license plate"])
    whose = r.choice(["my", "my", "the"]) if what not in ("phone number", "lucky number") else "my"

    def draw():
        v = (r.choice(WORDS) if "word" in what and r.random() < 0.5 else invented(r).lower() if what == "user name" else "".join(r.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(2)) + digits(r, 2, 4)
            if "flight" in what or "plate" in what else digits(r, 1, 3) if what in ("room number", "house number", "lucky number") else digits(r))
        return Fact("password" if what == "password" else f"secret {what}", [f"{whose} {what} is {v}", f"{whose} {what} is {v}", f"remember {whose} {what}: {v}", f"please remember that {whose} {what} is {v}"],
            [f"What is {whose} {what}?", f"What is {whose} {what}?", f"What was {whose} {what}?", f"Do you remember {whose} {what}?", f"what is {whose} {what}", f"Tell me {whose} {what}.", f"What is my {what}?"],
            f"{'Your' if whose == 'my' else 'The'} {what} is {v}.", f"I will remember the {what}.",
            anew=[f"{whose} {what} is {v} now", f"{whose} {what} has changed, it is {v} now", f"the new {what} is {v}", f"I have a new {what}, it is {v}", f"{whose} {what} has changed to {v}"])
    return Subject("password" if what == "password" else f"secret {what}", draw)


# key | tellings | questions | answer | values; {v} is the value, {a} the value with its article.
SIMPLE = """instrument|I play the {v};I play the {v};I am learning to play the {v}|What do I play?;Which instrument do I play?;What instrument do I play?|You play the {v}.|INSTRUMENTS
language|I speak {v};I can speak {v};I am learning {v}|Which language do I speak?;What language do I speak?;What language do I know?|You speak {v}.|LANGUAGES
study|I study {v};I am a student of {v};I study {v} at school|What do I study?;What subject do I study?|You study {v}.|STUDIES
allergy|I am allergic to {v};I can't eat {v};I must not eat {v}|What am I allergic to?;What can I not eat?|You are allergic to {v}.|FOODS
hate|I hate {v};I do not like {v};I don't like {v}|What do I hate?;What do I not like?;Which food do I not like?|You do not like {v}.|FOODS
collect|I collect {v};I love to collect {v}|What do I collect?|You collect {v}.|COLLECT
bought|I bought {a} today;I bought {a};yesterday I bought {a}|What did I buy?;what did i buy|You bought {a}.|THINGS
lost|I lost my {v};I have lost my {v}|What did I lose?;What have I lost?|You lost your {v}.|THINGS
found|I found {a};today I found {a} in the street|What did I find?|You found {a}.|THINGS
lunch|I had {v} for lunch;I ate {v} for lunch;for lunch I had {v}|What did I have for lunch?;What did I eat for lunch?|You had {v} for lunch.|FOODS
need|I need to buy {v};I must buy {v}|What do I need to buy?;What must I buy?|You need to buy {v}.|FOODS
trip|I am going to {v} tomorrow;tomorrow I go to {v};I will travel to {v}|Where am I going?;Where will I go?;Where do I want to go?|You are going to {v}.|TOWNS
born|I was born in {v}|Where was I born?|You were born in {v}.|TOWNS
grew|I grew up in {v}|Where did I grow up?|You grew up in {v}.|TOWNS
town|I live in {v};I live in {v};I live in {v};my home is in {v}|Where do I live?;Where do I live?;In which city do I live?;What town do I live in?;where do i live;Do you remember where I live?|You live in {v}.|TOWNS
job|I work as {a};I work as {a};I am {a};my job is {v}|What is my job?;What's my job?;What do I work as?;What do I do for work?;Do you remember my job?|You are {a}.|JOBS
workplace|I work at {v};I work in {v}|Where do I work?|You work at {v}.|PLACES
afraid|I am afraid of {v};I am scared of {v}|What am I afraid of?;What am I scared of?|You are afraid of {v}.|ANIMALS
want|I want to be {a} one day;I would like to be {a};when I grow up I want to be {a}|What do I want to be?;What do I want to become?|You want to be {a}.|JOBS
gift|I got {a} for my birthday;for my birthday I got {a}|What did I get for my birthday?|You got {a} for your birthday.|THINGS
wish|I want {a} for my birthday;I wish for {a}|What do I want for my birthday?;What do I wish for?|You want {a} for your birthday.|THINGS
name|my name is {v};my name is {v};I am called {v};I am {v};call me {v};my name's {v}|What is my name?;What's my name?;Who am I?;Do you know my name?;what is my name;Do you remember my name?;What am I called?|Your name is {v}.|NAMES
feel|I feel {v} today;I am {v} today|How do I feel?;How am I today?|You feel {v} today.|ADJECTIVES""".split("\n")
ANEW = {"town": ["I moved to {v}", "I live in {v} now", "I have moved to {v}", "now I live in {v}"], "job": ["I am {a} now", "I work as {a} now", "now I work as {a}", "I have a new job, I am {a} now"],
    "name": ["my name is {v} now", "call me {v} now", "please call me {v} from now on", "I changed my name, it is {v} now", "my new name is {v}", "my name is not that, it is {v}"],
    "study": ["I study {v} now"], "trip": ["I am going to {v} after all", "I will go to {v} instead"], "instrument": ["I play the {v} now"], "lost": ["I lost my {v} too"]}
ACK = {"name": "Nice to meet you, {v}!", "town": "{v} must be a nice place.", "job": "Being {a} sounds interesting."}


def plural_of(animal):
    return animal[:-1] + "ies" if animal.endswith("y") and animal[-2] not in "aeiou" else {"mouse": "mice", "fish": "fish", "wolf": "wolves", "goose": "geese", "sheep": "sheep"}.get(animal, animal + "s")


def simple(r, line=None):
    key, tell, ask, answer, pool = (line or r.choice(SIMPLE)).split("|")

    def draw():
        v = town(r) if pool == "TOWNS" else name(r) if pool == "NAMES" else r.choice(globals()[pool])
        v = plural_of(v) if pool == "ANIMALS" else v

        def fill(text):
            return text.replace("{v}", v).replace("{a}", an(v))
        return Fact(key, [fill(t) for t in tell.split(";")], ask.split(";"), fill(answer), fill(ACK.get(key, "")), [fill(t) for t in ANEW.get(key, [])])
    return Subject(key, draw)


def named(r):
    return simple(r, next(line for line in SIMPLE if line.startswith("name|")))


def age(r):
    def draw():
        n = r.randint(4, 95)
        return Fact("age", [f"I am {n} years old", f"I am {n} years old", f"I'm {n} years old", f"I am {n}", f"my age is {n}"], ["How old am I?", "How old am I?", "What is my age?", "how old am i", "Do you know how old I am?"],
            f"You are {n} years old.", anew=[f"I am {n} now", f"it was my birthday, I am {n} years old now"])
    return Subject("age", draw)


def other_person(r):
    """Returns a subject about another person, by name or as a relative."""
    relation = r.choice(RELATIVES) if r.random() < 0.5 else None
    kind = r.randrange(7)
    who = f"my {relation}" if relation else name(r)
    your = f"Your {relation}" if relation else who

    def draw():
        key = f"{who} {kind}"
        if kind == 0:
            v = town(r)
            return Fact(key, [f"{who} lives in {v}", f"{who} lives in {v}", f"{who} comes from {v}"], [f"Where does {who} live?", f"Where does {who} come from?", f"where does {who} live"], f"{your} lives in {v}.", anew=[f"{who} moved to {v}", f"{who} lives in {v} now"])
        if kind == 1:
            v = r.choice(FOODS)
            return Fact(key, [f"{who} likes {v}", f"{who} likes {v}", f"{who} loves {v}"], [f"What does {who} like?", f"What does {who} like to eat?"], f"{your} likes {v}.", anew=[f"{who} likes {v} now"])
        if kind == 2:
            v = r.randint(2, 90)
            return Fact(key, [f"{who} is {v} years old", f"{who} is {v}"], [f"How old is {who}?", f"how old is {who}", f"What age is {who}?"], f"{your} is {v} years old.", anew=[f"{who} is {v} now"])
        if kind == 3:
            v = an(r.choice(JOBS))
            return Fact(key, [f"{who} is {v}", f"{who} works as {v}"], [f"What does {who} do?", f"What is {who}'s job?", f"What does {who} work as?"], f"{your} is {v}.", anew=[f"{who} is {v} now"])
        if kind == 4:
            pet = r.choice(PETS)
            return Fact(key, [f"{who} has {an(pet)}"], [f"What pet does {who} have?", f"What animal does {who} have?", f"Which pet does {who} have?"], f"{your} has {an(pet)}.", anew=[f"{who} has {an(pet)} now"])
        if kind == 5:
            v = r.choice(COLORS)
            return Fact(key, [f"{who} has {an(v)} {'car'}", f"{who}'s car is {v}"], [f"What color is {who}'s car?", f"Which color is {who}'s car?"], f"{your}'s car is {v}.", anew=[f"{who}'s car is {v} now"])
        v = r.choice(["football", "chess", "tennis", "the piano", "the guitar", "cards", "basketball", "the violin", "golf", "the drums"])
        return Fact(key, [f"{who} plays {v}", f"{who} likes to play {v}"], [f"What does {who} play?", f"What does {who} like to play?"], f"{your} plays {v}.", anew=[f"{who} plays {v} now"])
    return Subject(f"{who} {kind}", draw)


KINDS = [(relative, 4), (thing_name, 2), (favorite, 3), (color, 2), (count, 2), (spot, 2), (when, 1.5), (secret, 2), (simple, 7), (age, 1), (other_person, 3.5)]


def subjects(r, n):
    """Returns n subjects with different keys. Half the time two are of the same kind, so that the model must distinguish them."""
    out, seen = [], set()
    make = None
    while len(out) < n:
        if make is None or r.random() < 0.65:
            make = r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
        s = make(r)
        if s.key not in seen:
            seen.add(s.key)
            out.append(s)
    return out


FAMILIES = {"relative": relative, "thing": thing_name, "pet": thing_name, "favorite": favorite, "color": color, "count": count, "spot": spot, "when": when}


def untold(r, key, known):
    """Returns a subject of `key`'s kind that is not in `known`, so that a known subject's fact does not answer a question about it."""
    make = FAMILIES.get(key.split(" ")[0])
    drawn = [make(r) for _ in range(4)] if make and " " in key else []
    return next((s for s in drawn if s.key not in known), None)


def changed(r, subject, old):
    """Returns a new value of a subject, and a clause that tells it."""
    for _ in range(8):
        fact = subject.draw()
        if fact.answer != old.answer:
            break
    if fact.anew and r.random() < 0.6:
        clause = r.choice(fact.anew)
    else:
        tell = r.choice(fact.tell)
        clause = r.choice([f"actually, {tell}", f"no, {tell}", f"sorry, {tell}", f"{tell} now", f"{tell} now", f"I was wrong, {tell}", f"wait, {tell}", f"from now on {tell}", tell])
    return fact, clause


UNKNOWN = ["I do not know. You have not told me that.", "I do not know that. You have not told me.", "You have not told me that yet."]


def password(r):
    kind = r.random()
    if kind < 0.5:
        return "".join(r.choice("0123456789") for _ in range(r.choice([3, 4, 4, 5, 5, 5, 6, 6, 8])))
    if kind < 0.65:
        return r.choice(WORDS)
    if kind < 0.75:
        return r.choice(WORDS) + str(r.randint(1, 999))
    if kind < 0.85:
        return f"{r.choice(COLORS)} {r.choice(PETS + WORDS)}"
    if kind < 0.92:
        return "-".join(r.choice(WORDS) for _ in range(r.randint(2, 3)))
    return "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(r.randint(4, 6)))


def make_facts(r):
    name = invented(r) if r.random() < 0.3 else r.choice(NAMES)
    pet, pet_name = r.choice(PETS), invented(r) if r.random() < 0.3 else r.choice(PET_NAMES)
    code = password(r)
    color, town = r.choice(COLORS), invented(r) if r.random() < 0.25 else r.choice(TOWNS)
    food, job, age = r.choice(FOODS), r.choice(JOBS), r.randint(4, 90)
    sister = r.choice(["brother", "sister", "mother", "father", "friend", "teacher", "cousin", "daughter", "son", "wife", "husband"])
    relative = invented(r) if r.random() < 0.3 else r.choice(NAMES)
    word = r.choice(["password", "password", "password", "password", "code", "secret word", "secret code", "pin"])
    spoken = "color" if r.random() < 0.6 else "colour"
    a = "an" if job[0] in "aeiou" else "a"
    return {
        "name": Fact("name",
            [f"my name is {name}", f"my name is {name}", f"I am {name}", f"I'm {name}", f"you can call me {name}", f"my name's {name}", f"people call me {name}", f"call me {name}"],
            ["What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Can you tell me my name?", "Do you know my name?", "What was my name?", "What am I called?",
             "what is my name", "Tell me my name.", "Do you still remember my name?", "whats my name", "What did I say my name was?", "Say my name.", "So what is my name?"],
            f"Your name is {name}.", f"Nice to meet you, {name}!"),
        "pet": Fact("pet",
            [f"I have a {pet} called {pet_name}", f"I have a {pet} named {pet_name}", f"my {pet} is called {pet_name}", f"my {pet}'s name is {pet_name}", f"my pet is a {pet} called {pet_name}",
             f"I live with my {pet} {pet_name}", f"my {pet} is named {pet_name}", f"I've got a {pet} called {pet_name}", f"we have a {pet} and its name is {pet_name}", f"{pet_name} is my {pet}"],
            [f"What is my {pet} called?", f"What is my {pet}'s name?", f"What is the name of my {pet}?", "What is my pet called?", "What is my pet's name?", "What is the name of my pet?",
             f"What's my {pet} called?", f"What's my {pet}'s name?", f"Do you remember the name of my {pet}?", f"Do you remember my {pet}'s name?", "what is my pets name", f"what is the name of my {pet}",
             "What's the name of my pet?", f"How is my {pet} called?", f"Can you tell me my {pet}'s name?", f"What did I call my {pet}?"],
            f"Your {pet} is called {pet_name}.", r.choice([f"{pet_name} is a lovely name for a {pet}.", f"{pet_name} sounds nice."])),
        "kind": Fact("kind", [], ["What pet do I have?", "What kind of pet do I have?", "Which animal do I have?", "Do I have a pet?", f"Who is {pet_name}?", f"What kind of animal is {pet_name}?", "What animal do I have?", "what pet do i have"],
            f"You have a {pet} called {pet_name}.", ""),
        "password": Fact("password",
            [f"my {word} is {code}", f"the {word} is {code}", f"please remember the {word}: {code}", f"remember my {word}: {code}", f"remember that the {word} is {code}", f"my {word} is {code}", f"the {word} is {code}",
             f"please remember that my {word} is {code}", f"keep this {word} for me: {code}", f"my secret {word.replace('secret ', '')} is {code}", f"the {word} for today is {code}", f"don't forget my {word}, it is {code}"],
            [f"What is the {word}?", f"What is my {word}?", f"What's the {word}?", f"What's my {word}?", f"What was the {word}?", f"Do you remember the {word}?", f"Do you remember my {word}?", f"Tell me the {word}.",
             f"Can you tell me my {word}?", f"what is the {word}", f"what is my {word}", f"I forgot my {word}. What was it?", f"What {word} did I tell you?", f"Please tell me my {word}.", f"Do you still know the {word}?", f"Give me the {word}."],
            f"The {word} is {code}.", r.choice([f"I will remember the {word}.", f"I will keep the {word} in mind.", f"The {word} is {code}, I will remember it."])),
        "color": Fact("color", [f"my favorite {spoken} is {color}".replace("favorite", "favourite" if spoken == "colour" else "favorite"), f"I like the {spoken} {color} best", f"the {spoken} I like most is {color}", f"{color} is my favorite {spoken}"],
            [f"What is my favorite {spoken}?", f"What's my favorite {spoken}?", f"Which {spoken} do I like best?", f"Do you remember my favorite {spoken}?", f"what is my favourite {spoken}", f"What {spoken} do I like?"],
            f"Your favorite {spoken} is {color}.", f"{color.capitalize()} is a nice {spoken}."),
        "town": Fact("town", [f"I live in {town}", f"I live in {town}", f"my home is in {town}", f"my town is {town}"],
            ["Where do I live?", "Where do I live?", "What town do I live in?", "Do you remember where I live?", "In which city do I live?", "where do i live", "Where is my home?"],
            f"You live in {town}.", f"{town} must be a nice place."),
        "food": Fact("food", [f"my favorite food is {food}", f"I love to eat {food}", f"I like {food} most of all", f"the food I like best is {food}"],
            ["What is my favorite food?", "What do I like to eat?", "What food do I like?", "Do you remember my favorite food?", "what's my favorite food"],
            f"Your favorite food is {food}.", f"{food.capitalize()}, that sounds tasty!"),
        "job": Fact("job", [f"I am {a} {job}", f"I work as {a} {job}", f"my job is {job}", f"I'm {a} {job}"], ["What is my job?", "What do I do for work?", "What's my job?", "Do you remember my job?", "What do I work as?"],
            f"You are {a} {job}.", f"Being {a} {job} sounds interesting."),
        "age": Fact("age", [f"I am {age} years old", f"I'm {age}", f"my age is {age}", f"I am {age}"], ["How old am I?", "What is my age?", "Do you remember how old I am?", "how old am i"], f"You are {age} years old.", f"{age} is a good age."),
        "relative": Fact("relative", [f"my {sister} is called {relative}", f"my {sister}'s name is {relative}", f"I have a {sister} named {relative}"],
            [f"What is my {sister} called?", f"What is my {sister}'s name?", f"What is the name of my {sister}?", f"What's my {sister}'s name?", f"Who is {relative}?" if r.random() < 0.3 else f"Do you remember my {sister}'s name?"],
            f"Your {sister} is called {relative}.", f"Please say hello to {relative}."),
    }
