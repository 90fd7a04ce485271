"""Freely worded facts: several in a sentence, names with accents, siblings and their cities, any case; and facts that are to be forgotten.

`told(r)` returns clauses that each tell all of a few facts at once. A fact here is a `Fact` of `facts.py` without wordings that tell it.
"""

import re

from facts import Fact, an, digits, invented, upper
from words import ANIMALS, COLORS, FAVORITES, FOODS, INSTRUMENTS, JOBS, LANGUAGES, NAMES, PET_NAMES, PETS, PLACES, THINGS, TOWNS, WORDS

ACCENTED = """Zoé René Chloé André Noé Éric Léa Céline Jérôme François Anaïs Loïc Hélène Benoît Maël José María Inés Núñez Íñigo Begoña Joaquín Andrés Sofía Lucía Martín Raúl João Inês Tomás Conceição Sebastião
Jürgen Günter Käthe Björn Jörg Müller Größe Søren Åsa Åke Øystein Bjørn Malmö Łukasz Żaneta Paweł Małgorzata Stanisław Jiří Lukáš Tomáš Šárka Žofie Dvořák Željko Đorđe Ivić Ömer Çağla Gülşen Şebnem İpek Zoltán Gábor
Lőrinc Ágnes Áron Siân Róisín Seán Aoife Þóra Guðrún Élodie Ștefan Mihăiță Nguyễn Thị Trần Hélio Renée Gaël Aurélie""".split()
CITIES = """Zürich|Köln|München|Malmö|Göteborg|Tromsø|Århus|Kraków|Łódź|Gdańsk|Poznań|Brasília|São Paulo|Bogotá|Medellín|Córdoba|Málaga|Cádiz|León|Orléans|Besançon|Nîmes|Saint-Étienne|Genève|Liège|Győr|Pécs|Plzeň
Český Krumlov|Iași|Bacău|Šibenik|Niš|İzmir|Muğla|Reykjavík|Valparaíso|Curaçao|Cancún|Mérida|Québec|Hà Nội|Würzburg|Düsseldorf|Tübingen""".replace("\n", "|").split("|")
MEN = "brother father uncle grandfather son nephew husband boyfriend grandpa dad".split()
WOMEN = "sister mother aunt grandmother daughter niece wife girlfriend grandma mom".split()
EITHER = "friend cousin neighbor teacher boss roommate colleague coach dentist neighbour".split()
ADULT = ["best friend", "little brother", "big sister", "older brother", "younger sister", "twin sister", "half-brother", "sister-in-law", "big brother", "little sister"]


def name(r):
    k = r.random()
    if k > 0.96:
        return f"{r.choice(['Mr.', 'Mrs.', 'Miss', 'Dr.', 'Aunt', 'Old'])} {r.choice([r.choice(NAMES), invented(r), r.choice(ACCENTED)])}"
    if k < 0.25:
        return r.choice(ACCENTED)
    if k < 0.45:
        return invented(r)
    if k < 0.55:  # invented, with accents
        return "".join(r.choice("áéíóúàèâêîôûäëïöüåøæñçčšžğłń") if r.random() < 0.3 else c for c in invented(r)).capitalize()
    if k < 0.6:
        return f"{r.choice(NAMES)} {r.choice(ACCENTED + NAMES)}"
    if k < 0.63:
        return f"{r.choice(NAMES + ACCENTED)}-{r.choice(NAMES)}"
    return r.choice(NAMES)


def town(r):
    k = r.random()
    return r.choice(CITIES) if k < 0.3 else invented(r) if k < 0.42 else r.choice(["New ", "Port ", "Saint ", "El ", "La "]) + invented(r) if k < 0.47 else r.choice(TOWNS)


def kin(r):
    """Returns a relative or friend with a name and one or two other facts, in one or two sentences."""
    rel = r.choice(MEN + WOMEN + EITHER + ADULT + ["sister", "brother"] * 6)
    man = rel in MEN or rel.endswith("brother")
    p = r.choice(["he", "she"]) if rel in EITHER or rel.endswith("friend") else "he" if man else "she"
    n = name(r)
    named = r.random() < 0.85
    who = f"my {rel}"
    aspects = r.sample(["town", "town", "town", "town", "age", "job", "pet", "food", "play", "car", "speak"], r.choice([1, 1, 1, 2] if named else [2, 2, 3]))
    aspects = list(dict.fromkeys(aspects))
    says, facts = [], []
    # A question may refer to the person by the relation or by the name.
    by_name = named and r.random() < 0.4
    s, S = (n, n) if by_name else (who, f"Your {rel}")
    o, O = (who, f"Your {rel}") if by_name else (n, n)

    def fact(key, asks, answer, more=()):
        also = [(q.format(s=o), answer.format(S=O)) for q in asks] if named else []
        facts.append(Fact(f"{rel} {key}", [], [q.format(s=s) for q in asks], answer.format(S=S), also=also + [(q, answer.format(S=S)) for q in more]))

    if named:
        facts.append(Fact(f"relative {rel}", [], [f"What is my {rel} called?", f"What is my {rel}'s name?", f"What is the name of my {rel}?", f"What's my {rel}'s name?", f"Do you remember my {rel}'s name?", f"How is my {rel} called?", f"What was my {rel}'s name?",
            f"what is my {rel}s name", f"Tell me the name of my {rel}."], f"Your {rel} is called {n}.", also=[(f"Who is {n}?", f"{n} is your {rel}."), (f"Who's {n}?", f"{n} is your {rel}."), (f"Do I have {an(rel)}?", f"Yes. Your {rel} is called {n}.")]))
    for a in aspects:
        if a == "town":
            v = town(r)
            says.append(r.choice([f"lives in {v}", f"lives in {v}", f"lives in {v}", f"has moved to {v}", f"moved to {v}", f"has a flat in {v}", f"is at home in {v}", f"now lives in {v}", f"comes from {v}", f"stays in {v}", f"is in {v}", f"is in {v} now", f"resides in {v}", f"went to {v}", f"found work in {v}", f"ended up in {v}", f"spends the year in {v}", f"has an apartment in {v}"]))
            fact("lives", ["Where does {s} live?", "Where does {s} live?", "Which city does {s} live in?", "In which town does {s} live?", "where does {s} live", "What town does {s} live in?", "Where is the home of {s}?", "Where is {s}?", "Where is {s} now?", "What city is {s} in?", "Which town is {s} in?", "Where does {s} stay?"], f"{{S}} lives in {v}.", [f"Who lives in {v}?", f"Who is in {v}?", f"Whom do I know in {v}?"])
        elif a == "age":
            v = r.randint(2, 92)
            says.append(r.choice([f"is {v}", f"is {v} years old", f"turned {v}", f"is {v} now"]))
            fact("age", ["How old is {s}?", "How old is {s}?", "What is the age of {s}?", "how old is {s}"], f"{{S}} is {v} years old.")
        elif a == "job":
            v = r.choice(JOBS)
            says.append(r.choice([f"is {an(v)}", f"works as {an(v)}", f"has a job as {an(v)}"]))
            fact("job", ["What does {s} do?", "What is the job of {s}?", "What does {s} work as?", "What does {s} do for work?"], f"{{S}} is {an(v)}.", [f"Who is {an(v)}?"])
        elif a == "pet":
            pet, v = r.choice(PETS), r.choice(PET_NAMES)
            says.append(r.choice([f"has {an(pet)} called {v}", f"has {an(pet)} named {v}", f"owns {an(pet)} called {v}"]))
            fact("pet", ["What pet does {s} have?", "What animal does {s} have?", "Which pet does {s} have?"], f"{{S}} has {an(pet)} called {v}.", [f"Who has {an(pet)}?"])
        elif a == "food":
            v = r.choice(FOODS)
            says.append(r.choice([f"likes {v}", f"loves {v}", f"eats {v} every day"]))
            fact("likes", ["What does {s} like?", "What does {s} like to eat?", "What food does {s} like?"], f"{{S}} likes {v}.", [f"Who likes {v}?"])
        elif a == "play":
            v = r.choice(["the " + i for i in INSTRUMENTS] + ["chess", "tennis", "football", "cards", "golf", "hockey"])
            says.append(f"plays {v}")
            fact("plays", ["What does {s} play?", "What does {s} like to play?"], f"{{S}} plays {v}.", [f"Who plays {v}?"])
        elif a == "car":
            v = r.choice(COLORS)
            says.append(r.choice([f"has {an(v)} car", f"drives {an(v)} car"]))
            fact("car", ["What color is the car of {s}?", "What color is {s}'s car?", "Which color does {s}'s car have?"], f"{{S}} has {an(v)} car.")
        else:
            v = r.choice(LANGUAGES)
            says.append(f"speaks {v}")
            fact("speaks", ["Which language does {s} speak?", "What language does {s} speak?"], f"{{S}} speaks {v}.")
    said = r.choice([" and ", " and ", ", "]).join(says)
    forms = ([f"my {rel} {n} {said}", f"my {rel} {n} {said}", f"{n}, my {rel}, {said}", f"I have {an(rel)} called {n}, {p} {said}", f"I have {an(rel)} called {n} who {said}", f"I've got {an(rel)} named {n} who {said}", f"my {rel} is called {n} and {p} {said}",
        f"my {rel} is called {n} and {said}", f"my {rel}'s name is {n}, {p} {said}", f"my {rel}'s name is {n} and {p} {said}", f"my {rel} is {n}. {upper(p)} {said}", f"{n} is my {rel} and {p} {said}", f"{n} is my {rel}. {upper(p)} {said}",
        f"I have {an(rel)}, {n}, who {said}", f"there is my {rel} {n}, {p} {said}", f"my {rel} {said} and is called {n}", f"my {rel} {said}, {p} is called {n}", f"{n} {said}, {p} is my {rel}", f"my {rel} {said}. Her name is {n}" if p == "she" else f"my {rel} {said}. His name is {n}"]
        if named else [f"my {rel} {said}", f"my {rel} {said}", f"I have {an(rel)} who {said}", f"as for my {rel}, {p} {said}"])
    return forms, facts


def siblings(r):
    """Returns two or three relatives of one kind, distinguished by name, some with their cities."""
    kind = r.choice(["sister", "brother", "son", "daughter", "cousin", "friend", "cat", "dog", "rabbit", "uncle", "aunt", "hamster"])
    n = [name(r) if kind not in PETS else r.choice([r.choice(PET_NAMES), invented(r)]) for _ in range(r.choice([2, 2, 2, 3]))]
    many, last = {2: "two", 3: "three"}[len(n)], n[-1]
    listed = f"{', '.join(n[:-1])} and {last}"
    facts = [Fact(f"relative {kind}", [], [f"What are my {kind}s called?", f"What are the names of my {kind}s?", f"What are my {kind}s' names?", f"Who are my {kind}s?", f"Do you remember the names of my {kind}s?", f"Name my {kind}s."], f"Your {kind}s are called {listed}."),
        Fact(f"count {kind}", [], [f"How many {kind}s do I have?", f"How many {kind}s have I got?", f"how many {kind}s do i have"], f"You have {many} {kind}s.")]
    if r.random() < 0.5:
        tell = [f"I have {many} {kind}s, {listed}", f"I have {many} {kind}s called {listed}", f"my {many} {kind}s are called {listed}", f"I've got {many} {kind}s and they are called {listed}", f"I have {many} {kind}s. They are called {listed}"]
    else:
        tell, facts = [f"my {kind}s are called {listed}", f"{listed} are my {kind}s", f"my {kind}s are {listed}", f"the names of my {kind}s are {listed}"], facts[:1]
    if kind in PETS or r.random() < 0.4:
        return tell, facts
    v = [town(r) for _ in n]
    where = r.choice([", ".join(f"{a} lives in {b}" for a, b in zip(n[:-1], v)) + f" and {last} lives in {v[-1]}", f"{n[0]} lives in {v[0]}, " + ", ".join(f"{a} in {b}" for a, b in zip(n[1:], v[1:])), ". ".join(f"{a} lives in {b}" for a, b in zip(n, v)),
        " and ".join(f"{a} is in {b}" for a, b in zip(n, v))])
    each = [Fact(f"{a} lives", [], [f"Where does {a} live?", f"Where does my {kind} {a} live?", f"Which city does {a} live in?", f"where does {a} live", f"Where is {a}?", f"What city is {a} in?"], f"{a} lives in {b}.", also=[(f"Who lives in {b}?", f"{a} lives in {b}."), (f"Who is in {b}?", f"{a} lives in {b}."), (f"Which one lives in {b}?", f"{a} lives in {b}."), (f"Which {kind} lives in {b}?", f"{a} lives in {b}."), (f"Which of my {kind}s lives in {b}?", f"{a} lives in {b}.")]) for a, b in zip(n, v)]
    if len(n) == 2 and r.random() < 0.4:
        a, b = n
        return [f"my {kind} {a} lives in {v[0]} and my {kind} {b} lives in {v[1]}", f"my {kind} {a} lives in {v[0]} and my {kind} {b} in {v[1]}", f"my {kind} {a} lives in {v[0]}, my {kind} {b} lives in {v[1]}"], each
    return [f"{t}{r.choice(['. ', '; ', ', '])}{where}" for t in tell], facts + each


def couple(r):
    """Returns two relatives at once: names, or names and cities."""
    one, two = r.sample(["sister", "brother", "mother", "father", "friend", "cousin", "son", "daughter", "wife", "husband", "aunt", "uncle", "boss", "neighbor", "teacher"], 2)
    a, b = name(r), name(r)
    facts = [Fact(f"relative {k}", [], [f"What is my {k} called?", f"What is my {k}'s name?", f"What is the name of my {k}?", f"What's my {k}'s name?", f"How is my {k} called?"], f"Your {k} is called {v}.", also=[(f"Who is {v}?", f"{v} is your {k}.")]) for k, v in ((one, a), (two, b))]
    if r.random() < 0.5:
        return [f"my {one} is called {a} and my {two} {b}", f"my {one} is {a} and my {two} is {b}", f"{a} is my {one} and {b} is my {two}", f"{a} is my {one}, {b} my {two}", f"my {one}'s name is {a}, my {two}'s name is {b}", f"my {one} and my {two} are called {a} and {b}",
            f"I have {an(one)} called {a} and {an(two)} called {b}", f"my {one}: {a}, my {two}: {b}"], facts
    c, d = town(r), town(r)
    lives = [Fact(f"{k} lives", [], [f"Where does my {k} live?", f"Where does my {k} live?", f"Where does {v} live?", f"Which city does my {k} live in?"][: 2 if r.random() < 0.7 else 4], f"Your {k} lives in {t}.", also=[(f"Who lives in {t}?", f"Your {k} lives in {t}.")]) for k, v, t in ((one, a, c), (two, b, d))]
    if r.random() < 0.4:
        lives = [Fact(f.key, [], [f"Where does my {k} live?", f"Which city does my {k} live in?", f"where does my {k} live"], f.answer, also=f.also) for f, k in zip(lives, (one, two))]
        return [f"my {one} lives in {c} and my {two} lives in {d}", f"my {one} lives in {c} and my {two} in {d}", f"my {one} lives in {c}, my {two} in {d}", f"my {one} is in {c} while my {two} is in {d}", f"my {one} lives in {c} but my {two} lives in {d}"], lives
    return [f"my {one} {a} lives in {c} and my {two} {b} lives in {d}", f"my {one} {a} lives in {c} and my {two} {b} in {d}", f"{a}, my {one}, lives in {c}, and {b}, my {two}, lives in {d}", f"my {one} {a} is in {c}, my {two} {b} in {d}"], facts + lives


def myself(r):
    """Returns the speaker's name with one to three other facts."""
    n, t, age, job = name(r), town(r), r.randint(5, 90), r.choice(JOBS)
    lead = r.choice([f"I am {n}", f"I'm {n}", f"my name is {n}", f"my name is {n}", f"this is {n}", f"they call me {n}", f"it's {n}", f"the name is {n}", f"everybody calls me {n}", f"my name's {n}", f"I go by {n}", f"here is {n}", f"you are talking to {n}", f"you're talking to {n}", f"my parents named me {n}", f"I was named {n}", f"it is {n} again"])
    facts = [Fact("name", [], ["What is my name?", "What's my name?", "Who am I?", "Do you know my name?", "what is my name", "What am I called?", "whats my name", "Do you still know my name?", "Say my name."], f"Your name is {n}.", f"Nice to meet you, {n}!")]
    says = []
    for a in r.sample(["town", "town", "age", "job", "pet", "food", "color"], r.choice([1, 1, 2, 3])):
        if a == "town" and not any(f.key == "town" for f in facts):
            says.append(r.choice([f"I live in {t}", f"I live in {t}", f"I am from {t}", f"I'm from {t}", f"my home is {t}", f"I come from {t}", f"home is {t}", f"I moved to {t}", f"I'm based in {t}", f"I'm living in {t}"]))
            facts.append(Fact("town", [], ["Where do I live?", "Where do I live?", "Which city do I live in?", "In which town do I live?", "where do i live", "What town do I live in?", "Where is my home?"], f"You live in {t}.", also=[("Where am I from?", f"You are from {t}."), ("Where do I come from?", f"You come from {t}.")] if "from" in says[-1] else []))
        elif a == "age":
            says.append(r.choice([f"I am {age}", f"I am {age} years old", f"I'm {age} years old", f"I turned {age}", f"I'm {age}"]))
            facts.append(Fact("age", [], ["How old am I?", "How old am I?", "What is my age?", "how old am i"], f"You are {age} years old."))
        elif a == "job":
            says.append(r.choice([f"I am {an(job)}", f"I work as {an(job)}", f"I'm {an(job)}", f"my job is {job}", f"I have a job as {an(job)}"]))
            facts.append(Fact("job", [], ["What is my job?", "What do I do for work?", "What do I work as?", "What's my job?", "what is my job"], f"You are {an(job)}."))
        elif a == "pet":
            pet, v = r.choice(PETS), r.choice([r.choice(PET_NAMES), invented(r), r.choice(ACCENTED)])
            says.append(r.choice([f"I have {an(pet)} called {v}", f"my {pet} is called {v}", f"{v} is my {pet}", f"I live with my {pet} {v}", f"I have {an(pet)}, {v}"]))
            facts.append(Fact(f"pet {pet}", [], [f"What is my {pet} called?", f"What is my {pet}'s name?", "What is my pet called?", f"What is the name of my {pet}?"], f"Your {pet} is called {v}."))
        elif a == "food":
            v = r.choice(FOODS)
            says.append(r.choice([f"I like {v}", f"I love {v}", f"my favorite food is {v}"]))
            facts.append(Fact("food", [], ["What do I like to eat?", "What food do I like?", "What do I like?"], f"You like {v}."))
        elif a == "color":
            v = r.choice(COLORS)
            says.append(r.choice([f"my favorite color is {v}", f"I like {v} best of all colors"]))
            facts.append(Fact("color", [], ["What is my favorite color?", "Which color do I like best?"], f"Your favorite color is {v}."))
    said = [", ".join(says), " and ".join(says)]
    forms = [f"{lead} and {said[1]}", f"{lead}, {said[0]}", f"{lead}. {upper('. '.join(upper(x) for x in says))}", f"{said[1]}, and {lead}", f"{upper(says[0])}. {upper(lead)}" + "".join(f", {x}" for x in says[1:]), f"{n} here, {said[1]}"]
    keys = [f.key for f in facts]
    if keys == ["name", "town"]:
        forms += [f"greetings from {t}, I am {n}", f"this is {n} from {t}", f"{n} speaking, from {t}", f"I am {n} and I write from {t}", f"I am {n} from {t}", f"I'm {n} from {t}", f"{n} from {t} here", f"I'm {n} and from {t}", f"I am {n} and live in {t}", f"{n} is my name and {t} is my home"]
    if keys == ["name", "age"]:
        forms += [f"I'm {n}, {age}", f"I am {n} and {age} years old", f"{n}, {age} years old"]
    if keys == ["name", "job"]:
        forms += [f"I'm {n}, {an(job)}", f"I am {n} and work as {an(job)}", f"I'm {an(job)} called {n}"]
    return forms, facts


def secrets(r):
    """Returns two numbers or words that belong to different things, or one of them with another fact."""
    one, two = r.sample(["password", "password", "pin", "door code", "wifi password", "phone number", "locker number", "room number", "secret word", "bank code", "code", "user name"], 2)
    if one == two:
        two = "room number"
    a, b = (r.choice(["".join(r.choice("abcdefghkmnpqrstuvwxyz") for _ in range(r.randint(4, 7))) + digits(r, 1, 3), digits(r, 3, 7), digits(r, 3, 7), invented(r), invented(r).lower()]) for _ in range(2))
    asks = lambda k: [f"What is my {k}?", f"What is the {k}?", f"What was my {k}?", f"What's my {k}?", f"Tell me my {k}.", f"what is my {k}", f"Do you remember my {k}?", f"Give me my {k}.", f"Which {k} did I tell you?"]
    facts = [Fact("password" if k == "password" else f"secret {k}", [], asks(k), f"Your {k} is {v}.") for k, v in ((one, a), (two, b))]
    if r.random() < 0.4:
        return [f"my {one} is {a}", f"my {one} is: {a}", f"{a} is my {one}", f"my {one} = {a}", f"my {one}: {a}", f"I use {a} as my {one}", f"remember {a}, it is my {one}", f"note my {one}, {a}", f"I chose {a} as {one}"], facts[:1]
    return [f"my {one} is {a} and my {two} is {b}", f"my {one} is {a}, my {two} is {b}", f"{a} is my {one} and {b} is my {two}", f"my {one} is {a} and the {two} {b}", f"my {one}: {a}, my {two}: {b}", f"my {one} and my {two} are {a} and {b}", f"I use {a} as my {one} and {b} as my {two}"], facts


def tastes(r):
    good, bad = r.sample(FOODS, 2)
    facts = [Fact("likes", [], ["What do I like?", "What food do I like?", "What do I like to eat?"], f"You like {good}."), Fact("hate", [], ["What do I hate?", "What do I not like?", "What food do I not like?", "What don't I like?"], f"You do not like {bad}.")]
    return [f"I like {good} but I hate {bad}", f"I love {good} but not {bad}", f"I like {good} and hate {bad}", f"I love {good}, but I don't like {bad}", f"I hate {bad} but I love {good}", f"I do not like {bad}, I like {good}"], facts


def meeting(r):
    who, where, hour = name(r), town(r), r.randint(1, 12)
    facts = [Fact("meet who", [], ["Who do I meet?", "Whom do I meet?", "Who am I meeting?", "Who will I meet?"], f"You meet {who}."), Fact("meet where", [], ["Where do I meet them?", f"Where do I meet {who}?", "Where is the meeting?", f"Where am I meeting {who}?"], f"You meet {who} in {where}."),
        Fact("meet when", [], [f"When do I meet {who}?", "When is the meeting?", f"At what time do I meet {who}?"], f"You meet {who} at {hour}.")]
    return [f"I meet {who} in {where} at {hour}", f"I am meeting {who} at {hour} in {where}", f"I will meet {who} in {where} at {hour} o'clock", f"at {hour} I meet {who} in {where}", f"I have a meeting with {who} in {where} at {hour}"], facts


# base | third person | past; with an object, or only with a place.
WITH_THING = """buy buys bought|sell sells sold|find finds found|lose loses lost|read reads read|draw draws drew|carry carries carried|wash washes washed|fix fixes fixed|paint paints painted|hide hides hid|see sees saw|want wants wanted|need needs needed
build builds built|break breaks broke|clean cleans cleaned|bring brings brought|take takes took|choose chooses chose|lend lends lent|steal steals stole|win wins won|hold holds held|wear wears wore|borrow borrows borrowed|order orders ordered|get gets got"""
WITH_FOOD = "eat eats ate|cook cooks cooked|bake bakes baked|order orders ordered|like likes liked|try tries tried|share shares shared|burn burns burned|buy buys bought|grow grows grew|taste tastes tasted|serve serves served|want wants wanted|love loves loved"
WITH_PLACE = """work works worked|sleep sleeps slept|swim swims swam|teach teaches taught|sing sings sang|wait waits waited|stay stays stayed|dance dances danced|rest rests rested|train trains trained|shop shops shopped|play plays played|meet meets met
walk walks walked|sit sits sat|fish fishes fished|live lives lived|paint paints painted|park parks parked|eat eats ate|cook cooks cooked|hide hides hid|grow up grows up grew up|study studies studied|camp camps camped"""
MORE_THINGS = "van lorry truck motorbike scooter tent cottage garden shed fence desk boat sledge suit tie belt cap mirror stove oven pan".split()


def verb(r, table):
    """Returns (base, third person, past) of a verb with one, two or three words in each form."""
    words = r.choice(table.replace("\n", "|").split("|")).split()
    n = len(words) // 3
    return [" ".join(words[i * n : (i + 1) * n]) for i in range(3)]


def deed(r):
    """Returns (clause, facts, subject as a key) for something that a person does or did: a tense, a thing or a place, sometimes a time."""
    rel = r.choice(MEN + WOMEN + EITHER + ADULT)
    k = r.random()
    s, S, key = ("I", "You", "me") if k < 0.35 else (f"my {rel}", f"Your {rel}", rel) if k < 0.7 else (n := name(r), n, n)
    asked, me = s, s == "I"
    kind, past = r.choice(["thing", "thing", "food", "place", "place"]), r.random() < 0.6
    base, third, did = verb(r, {"thing": WITH_THING, "food": WITH_FOOD, "place": WITH_PLACE}[kind])
    form = did if past else base if me else third
    do = "did" if past else "do" if me else "does"
    color = r.choice(COLORS) + " " if r.random() < 0.35 else ""
    noun = r.choice(THINGS + MORE_THINGS)
    where = r.choice([f"in {town(r)}", f"in {town(r)}", f"in {town(r)}", f"at {r.choice(PLACES)}", f"in {r.choice(PLACES)}"])
    when = r.choice([f"on {r.choice(FAVORITES['day'])}", f"in {r.choice(FAVORITES['month'])}", f"at {r.randint(1, 12)}", f"on {r.choice(FAVORITES['day'])}"])
    timed = r.random() < 0.3
    facts = []
    if kind == "place":
        said = f"{form} {where}"
        facts.append(Fact(f"{key} {base} where", [], [f"Where {do} {asked} {base}?"] * 3 + ([f"In which city {do} {asked} {base}?", f"Which city {do} {asked} {base} in?"] if where.startswith("in ") and not where.startswith("in a") else []), f"{S} {form} {where}.", also=[] if me else [(f"Who {did if past else third} {where}?", f"{S} {form} {where}.")]))
        timed = timed and past
        if timed:
            facts.append(Fact(f"{key} {base} when", [], [f"When did {asked} {base} {where}?", f"When did {asked} {base}?"], f"{S} {form} {where} {when}."))
    else:
        v = an(color + noun) if kind == "thing" else r.choice(FOODS)
        said = f"{form} {v}"
        facts.append(Fact(f"{key} {base} what", [], [f"What {do} {asked} {base}?"] * 3, f"{S} {form} {v}.", also=[] if me else [(f"Who {did if past else third} {v}?", f"{S} {form} {v}.")]))
        if kind == "thing" and color:
            facts.append(Fact(f"{key} {base} color", [], [f"What color is the {noun} that {asked} {form}?", f"What color is the {noun}?", f"Which color does the {noun} have?"], f"The {noun} is {color.strip()}."))
        if r.random() < 0.4:
            said += f" {where}"
            facts.append(Fact(f"{key} {base} where", [], [f"Where {do} {asked} {base} it?" if kind == "thing" else f"Where {do} {asked} {base} {v}?", f"Where {do} {asked} {base} the {noun}?" if kind == "thing" else f"Where {do} {asked} {base} the {v}?"], f"{S} {form} {'the ' + noun if kind == 'thing' else v} {where}."))
        timed = timed and past
        if timed:
            facts.append(Fact(f"{key} {base} when", [], [f"When {do} {asked} {base} {'the ' + noun if kind == 'thing' else v}?"], f"{S} {form} {'the ' + noun if kind == 'thing' else v} {when}."))
    clause = f"{s} {said}" + (f" {when}" if timed else "")
    if timed and r.random() < 0.3:
        clause = f"{when} {s} {said}"
    return clause, facts, key


OWN = "own owns|drive drives|ride rides|have has|use uses|keep keeps|rent rents|wear wears|carry carries".split("|")
OWNED = "van scooter motorbike car bike truck tractor boat horse pony tent piano guitar sofa coat hat scarf backpack umbrella lamp phone cup helmet suit watch bag cap raincoat sledge violin drum armchair canoe".split()


def owner(r):
    """Returns the colored things that one or two people have."""
    out, facts, seen = [], [], set()
    for _ in range(r.choice([1, 2, 2, 2])):
        rel, noun, v = r.choice(MEN + WOMEN + EITHER), r.choice(OWNED), r.choice(COLORS)
        k = r.random()
        s, S, of, key = ("I", "Your", "my", "me") if k < 0.45 else (f"my {rel}", f"Your {rel}'s", f"my {rel}'s", rel) if k < 0.8 else (n := name(r), f"{n}'s", f"{n}'s", n)
        if key in seen or noun in seen:
            continue
        seen |= {key, noun}
        base, third = r.choice(OWN).split()
        me = s == "I"
        out.append(f"{s} {base if me else third} {an(v)} {noun}" if r.random() < 0.7 else f"{of} {noun} is {v}")
        facts.append(Fact(f"{key} {noun}", [], [f"What color is {of} {noun}?", f"What color is {of} {noun}?", f"Which color does {of} {noun} have?", f"What is the color of {of} {noun}?"], f"{S} {noun} is {v}.", also=[(f"Whose {noun} is {v}?", f"{S} {noun} is {v}.")]))
    return [r.choice([" and ", " and ", ", ", ", and ", " but ", ". "]).join(out)], facts


ROLES = """boss landlord coach dentist doctor teacher neighbor pen-pal roommate hero partner trainer baker butcher tutor manager captain hairdresser lawyer guide best-man godmother godfather classmate colleague plumber mechanic gardener driver""".replace("-", "_").split()
NOUNS = {  # nouns with a value, by the kind of value
    "FOODS": "breakfast|lunch|dinner|supper|snack|dessert|first course|order", "TOWNS": "home town|next stop|last stop|destination|birthplace|dream city|first stop", "COLORS": "team color|school color|flag|signal color", "THINGS": "present|prize|first toy|lucky charm|costume|project",
    "ANIMALS": "totem|costume|mascot|favorite beast", "JOBS": "dream job|first job|old job|new job|trade", "NUMBERS": "seat|gate|shoe size|locker|house number|room|bus line|lucky number|platform|table|jersey number|score", "LANGUAGES": "mother tongue|first language|second language",
    "WORDS": "code word|nickname|user name|team name|secret word|magic word", "INSTRUMENTS": "first instrument|instrument"}


def equals(r):
    """Returns one or two things with their values: my seat is 14 and the gate 7."""
    said, facts, seen = [], [], set()
    for i in range(r.choice([1, 2, 2, 2, 3])):
        if r.random() < 0.4:
            noun, v, who = r.choice(ROLES).replace("_", " "), name(r), True
        else:
            kind = r.choice(list(NOUNS))
            noun, who = r.choice(NOUNS[kind].split("|")), False
            v = str(r.randint(1, 99)) if kind == "NUMBERS" else town(r) if kind == "TOWNS" else an(r.choice(globals()[kind])) if kind in ("THINGS", "ANIMALS") else r.choice(globals()[kind])
        if noun in seen:
            continue
        seen.add(noun)
        whose = r.choice(["my", "my", "my", "the", "our"]) if not who else "my"
        was = "was" if noun.split()[0] in ("breakfast", "lunch", "dinner", "supper", "first", "last", "old") and r.random() < 0.6 else "is"
        said.append(r.choice([f"{whose} {noun} {was} {v}", f"{whose} {noun} {was} {v}", f"{v} {was} {whose} {noun}", f"{whose} {noun}: {v}"] + ([f"{whose} {noun} {v}"] if i else [])))
        Whose = {"my": "Your", "the": "The", "our": "Your"}[whose]
        w = "Who" if who else "What"
        facts.append(Fact(f"is {noun}", [], [f"{w} {was} {whose} {noun}?"] * 3 + ([f"What {was} the name of my {noun}?", f"What is my {noun} called?"] if who else [f"What did I say {whose} {noun} {was}?"]), f"{Whose} {noun} {was} {v}.", also=[(f"Who {was} {v}?", f"{v} {was} your {noun}.")] if who else []))
    links = [" and ", " and ", ", ", " and ", "; ", " but ", ". "]
    return ["".join((r.choice(links) if i else "") + x for i, x in enumerate(said)) for _ in range(2)], facts


def deeds(r):
    """Returns what one or two people do or did, in the sentence structure of other things that users tell."""
    one, facts, key = deed(r)
    if r.random() < 0.4:
        return [one], facts
    for _ in range(9):
        two, more, other = deed(r)
        if other != key and not {f.answer.split(" ", 1)[1] for f in facts} & {f.answer.split(" ", 1)[1] for f in more}:
            break
    if other == key:
        return [one], facts
    if any("color" in f.key for f in facts + more):
        more = [f for f in more if "color" not in f.key]
    return [f"{one} {link} {two}" for link in ("and", "and", "but", "while", "so")] + [f"{one}, {two}", f"{one}. {upper(two)}", f"{one}, and {two}", f"{one}; {two}"], facts + more


KINDS = [(deeds, 6), (owner, 2), (equals, 5), (kin, 8), (siblings, 3), (couple, 4), (myself, 5), (secrets, 4), (tastes, 0.7), (meeting, 0.7)]


def told(r):
    """Returns (clauses, each of which tells everything; the facts)."""
    return r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0](r)


INDIRECT = [(r"What(?: is|'s) (.+) called\?", r"what \1 is called"), (r"What(?: is|'s) (.+)\?", r"what \1 is"), (r"Where do I live\?", "where I live"), (r"Where does (.+) live\?", r"where \1 lives"), (r"Who is (.+)\?", r"who \1 is"), (r"Who am I\?", "who I am"),
    (r"How old am I\?", "how old I am"), (r"How old is (.+)\?", r"how old \1 is"), (r"How many (.+) do I have\?", r"how many \1 I have"), (r"What are (.+) called\?", r"what \1 are called"), (r"Where (is|are) (.+)\?", r"where \2 \1"),
    (r"What (?:color|colour) (is|are) (.+)\?", r"what color \2 \1"), (r"What does (.+) (like|play)\?", r"what \1 \2s"), (r"Which language does (.+) speak\?", r"which language \1 speaks"), (r"What pet does (.+) have\?", r"what pet \1 has")]


def loosened(r, question):
    """Returns a question in a casual wording: indirect, or after a few words."""
    k = r.random()
    if k < 0.3:
        for form, clause in INDIRECT:
            if re.fullmatch(form, question):
                clause = re.sub(form, clause, question)
                return r.choice(["Tell me {}.", "Please tell me {}.", "Can you tell me {}?", "Do you know {}?", "Do you remember {}?", "Remind me {}.", "I forgot {}.", "I want to know {}.", "I can't remember {}.", "Could you tell me {}?", "Do you still know {}?", "I have forgotten {}."]).format(clause)
    if k < 0.5 and question[0].isupper() and question.startswith(("What", "Where", "Who", "How", "Which", "When", "Do you")):
        return r.choice(["So {}", "And {}", "Now, {}", "Tell me, {}", "Please, {}", "Hey, {}", "One question: {}", "Okay, {}", "Remind me, {}", "Well, {}", "Sorry, {}", "Say, {}", "Hi, {}"]).format(question[0].lower() + question[1:])
    if k < 0.58 and question.endswith("?"):
        return question[:-1] + r.choice([" again?", ", please?", " now?", "", "??", " ?"])
    return question


FORGOTTEN = "I do not know. You asked me to forget it."
FORGET = ["Forget {}.", "Forget {}.", "Please forget {}.", "forget {}", "Forget {}, please.", "Can you forget {}?", "You can forget {} now.", "I want you to forget {}.", "Delete {}.", "Please delete {}.", "Erase {}.", "Do not remember {} any more.", "Now forget {}.", "Could you forget {}, please?",
    "Kindly forget {}.", "Stop remembering {}.", "There is no need to remember {}.", "I do not want you to know {} any longer.", "Clear {}.", "Drop {}.", "Let go of {}.", "Make sure to forget {}.", "Get rid of {}.", "Unlearn {}.", "It is time to forget {}.", "Would you forget {}?",
    "You should forget {}.", "Okay, forget {}.", "Remove {} from your memory.", "You must forget {}.", "Don't keep {}."]
KEEP = ["Don't forget {}.", "Do not forget {}.", "Never forget {}.", "Please do not forget {}.", "You must not forget {}.", "don't forget {}", "Please keep {}.", "Remember {}.", "Please remember {}."]
LOST = ["I forgot {}.", "I have forgotten {}.", "I forgot {}. What was it?", "I can't remember {}.", "I don't remember {}.", "I lost {}."]
STILL = ["Have you forgotten {}?", "Did you forget {}?", "Do you still have {}?", "Do you still know {}?", "You have not forgotten {}, have you?"]
ABOUT = ["Forget what I said about {}.", "Forget {}.", "Forget what I told you about {}.", "Please forget all about {}.", "Delete what you know about {}.", "You should know nothing about {}."]
EVERYTHING = ["Clear your memory.", "Forget me.", "Forget all about me.", "Forget all of this.", "Forget the things I told you.", "Delete all you know.", "Please delete all of it.", "Let us start over: forget it all.", "You should remember nothing.", "Forget everything.", "Forget everything I told you.", "Please forget all that I said.", "Forget all of it.", "forget everything", "Forget what I told you.", "Delete everything.", "I want you to forget everything."]


def phrase(fact):
    """Returns the topic of a fact as a phrase: "my password", "where I live"; None if its questions contain no phrase."""
    for q in fact.ask:
        m = re.fullmatch(r"What(?:'s| is) ((?:my|the) [^?]+?)\?", q)
        if m and not m[1].endswith("called"):
            return m[1]
    for q in fact.ask:
        for form, clause in INDIRECT:
            if re.fullmatch(form, q):
                return re.sub(form, clause, q)
    return None


def yours(text):
    """Returns a phrase of the user's in the assistant's words."""
    return re.sub(r"\bI\b", "you", re.sub(r"\bmy\b", "your", text)).replace("you am", "you are")


def forgotten(fact):
    return Fact(fact.key, [], fact.ask + [q for q, _ in fact.also], FORGOTTEN)


BEFORE = ["You know, {}", "Just so you know, {}", "FYI, {}", "Listen, {}", "To begin with, {}", "I should say that {}", "Guess what, {}", "Let me tell you: {}", "It may help to know that {}", "I want to tell you that {}", "You should know that {}", "Well, {}", "Note that {}", "First of all, {}", "Oh, {}", "I have to say, {}",
    "Today I learned that {}", "Please note: {}"]
AFTER = [", you see", ", just so you know", ", as you may know", ", I think", ", you know", ", that is all", ", so to speak", ", as I said", ", to be exact"]


def told_loosely(r, clause):
    """Returns a clause with the small words that people put around it."""
    k = r.random()
    if k < 0.12:
        return r.choice(BEFORE).format(clause)
    if k < 0.16 and clause[-1] not in ".!?":
        return clause + r.choice(AFTER)
    if k < 0.2 and " is " in clause:
        return clause.replace(" is ", r.choice([", you know, is ", ", as you see, is ", ", I must say, is ", ", to be exact, is "]), 1)
    if k < 0.26:
        return re.sub(r"(\w) is ", r"\1's ", clause, count=1)
    return clause


# The words of the sentence patterns, which keep their case in an answer; values do not.
FRAME = set("""i will remember that and okay now thank you for telling me keep in mind not forget it good to know nice meet your yours the is are a an called lives live at on by with from of have has had like likes
play plays work works as do does did bought lost found got going need speak speaks study collect allergic afraid want be were born grew up years old feel today birthday lunch two three car no yes come comes asked forgotten
what how can help would sounds interesting must place lovely name choice color nice say hello please what told everything all any more own see best say hi o'clock leaves leave begins them am there they he she his her""".split())


def recased(style, user, answer, facts):
    """Returns the exchange in lower or upper case. The answer gives values as the user wrote them."""
    if style == "lower":
        user = user.lower()
        return user, re.sub(r"[^\W\d_]+", lambda m: m[0] if m[0] in ("Your", "You", "The", "I", "Okay", "Nice", "Thank", "Yes", "No", "Good", "Please") else m[0].lower(), answer)
    frame = FRAME.union(*(re.findall(r"[^\W\d_]+", q.lower()) for f in facts for q in f.ask))
    return user.upper(), re.sub(r"[^\W\d_]+(?:['-][^\W\d_]+)*", lambda m: m[0] if m[0].lower() in frame and (m[0].islower() or m.start() == 0) else m[0].upper(), answer)
