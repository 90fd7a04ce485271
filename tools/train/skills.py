"""Sums and differences, counting, spelling, and honest answers to everything else: questions with one correct answer each.

A tenth of the pairs of numbers and a twentieth of the words are withheld from training, so that `evaluate.py` can distinguish memorized
tables from arithmetic.
"""

import collections
import re
import zlib

from words import ANIMALS, COLORS, FOODS, JOBS, LANGUAGES, NAMES, NUMBERS, PLURALS, RELATIVES, TENS, THINGS, TOWNS, WORDS

HONEST = "I am a small model; I tell stories, do small sums and remember what you tell me."


def withheld(a, b):
    """Returns whether the sum and the difference of two numbers are withheld from training. Pairs up to 20 never are."""
    return max(a, b) > 20 and zlib.crc32(f"{min(a, b)} {max(a, b)}".encode()) % 10 == 0


def word_withheld(word):
    return zlib.crc32(word.lower().encode()) % 20 == 0


def in_words(n):
    return "one hundred" if n == 100 else NUMBERS[n] if n <= 20 else TENS[n // 10] + ("-" + NUMBERS[n % 10] if n % 10 else "")


PLUS = """What is {a} + {b}?|What is {a} + {b}?|What is {a} + {b}?|What is {a} plus {b}?|What is {a} plus {b}?|{a} + {b}|{a} + {b} = ?|{a}+{b}=?|{a}+{b}|{a} plus {b}|How much is {a} + {b}?|How much is {a} plus {b}?|what is {a}+{b}
what is {a} + {b}|Add {a} and {b}.|Please add {a} and {b}.|What is the sum of {a} and {b}?|Calculate {a} + {b}.|Can you add {a} and {b}?|Tell me what {a} + {b} is.|And {a} + {b}?|How much is {a}+{b}?|What do you get when you add {a} and {b}?
What's {a} + {b}?|what's {a} plus {b}?|Do you know what {a} + {b} is?|Add {b} to {a}.|{a} and {b} make?|{a} + {b} =|{a} + {b} is?|What does {a} + {b} make?|Compute {a} + {b}|Can you tell me what {a} plus {b} is?""".replace("\n", "|").split("|")
MINUS = """What is {a} - {b}?|What is {a} - {b}?|What is {a} - {b}?|What is {a} minus {b}?|What is {a} minus {b}?|{a} - {b}|{a} - {b} = ?|{a}-{b}=?|{a}-{b}|{a} minus {b}|How much is {a} - {b}?|How much is {a} minus {b}?|what is {a}-{b}
what is {a} - {b}|Subtract {b} from {a}.|Please take {b} away from {a}.|What is {a} take away {b}?|What is the difference between {a} and {b}?|Calculate {a} - {b}.|Tell me what {a} - {b} is.|And {a} - {b}?|How much is {a}-{b}?
What's {a} - {b}?|what's {a} minus {b}?|Do you know what {a} - {b} is?|Take {b} from {a}.|{a} - {b} =|What is left of {a} without {b}?|Compute {a} - {b}|{a} take away {b}|Can you tell me what {a} minus {b} is?""".replace("\n", "|").split("|")
MORE = """I have {a} {things} and I buy {b} more. How many {things} do I have?|I have {a} {things} and get {b} more. How many do I have now?|{who} has {a} {things} and finds {b} more. How many {things} does {who} have?
There are {a} {things} on the table and {b} {things} on the floor. How many {things} are there?|{who} has {a} {things} and I have {b}. How many do we have together?|If I have {a} {things} and you give me {b}, how many do I have?
There are {a} birds in a tree and {b} more come. How many birds are there?|I read {a} pages today and {b} pages yesterday. How many pages did I read?|I had {a} {things}. I got {b} more. How many {things} do I have now?""".replace("\n", "|").split("|")
LESS = """I have {a} {things} and I give away {b}. How many {things} are left?|I have {a} {things} and lose {b}. How many do I have now?|{who} has {a} {things} and eats {b}. How many are left?|There are {a} birds in a tree and {b} fly away. How many are left?
There were {a} {things} and {b} are gone. How many are left?|{who} had {a} {things} and sold {b}. How many {things} does {who} have now?|I had {a} {things}. I lost {b}. How many do I have left?|If I have {a} {things} and you take {b}, how many do I have?
There are {a} children in a bus and {b} get out. How many are still there?""".replace("\n", "|").split("|")


THREE = """What is {a} {s} {b} {t} {c}?|What is {a} {s} {b} {t} {c}?|{a} {s} {b} {t} {c}|{a}{s}{b}{t}{c}|{a} {s} {b} {t} {c} = ?|{a}{s}{b}{t}{c}=?|How much is {a} {s} {b} {t} {c}?|what is {a} {s} {b} {t} {c}|Calculate {a} {s} {b} {t} {c}.|And {a} {s} {b} {t} {c}?
What's {a} {s} {b} {t} {c}?|{a} {s} {b} {t} {c} =|Compute {a} {s} {b} {t} {c}|What is {a} {ss} {b} {tt} {c}?|How much is {a} {ss} {b} {tt} {c}?|{a} {ss} {b} {tt} {c}|what is {a} {ss} {b} {tt} {c}?|Can you work out {a} {s} {b} {t} {c}?""".replace("\n", "|").split("|")
TOGETHER = """Add {a}, {b} and {c}.|Please add {a}, {b} and {c}.|What is the sum of {a}, {b} and {c}?|Add up {a}, {b}, {c}.|What do {a}, {b} and {c} make?|I have {a} red, {b} blue and {c} green {things}. How many {things} do I have?|{who} has {a} {things}, buys {b} and finds {c} more. How many are there?
I read {a} pages on Monday, {b} on Tuesday and {c} on Wednesday. How many pages did I read?|There are {a} {things} in the first box, {b} in the second and {c} in the third. How many are there in all?|Sum of {a}, {b} and {c}?|{a} and {b} and {c} make?""".replace("\n", "|").split("|")

IN_AND_OUT = """I had {a} {things}, got {b} and lost {c}. How many do I have?|{a} people are on a bus, {b} get on and {c} get off. How many are on the bus?|Start with {a}, add {b} and take away {c}.|Add {b} to {a}, then take away {c}.|{who} has {a} {things}, finds {b} and sells {c}. How many are left?
Take {a} and {b} together, minus {c}.|There were {a} {things}. {b} came and {c} went. How many are there?|{a} and {b} more, but {c} less. How many?""".replace("\n", "|").split("|")
LEFT_OVER = """I had {a} {things}, lost {b} and gave away {c}. How many are left?|Take {b} and {c} away from {a}.|{who} had {a} {things}, sold {b} and ate {c}. How many are left?|There were {a} {things}. First {b} went, then {c}. How many are left?|Subtract {b} and {c} from {a}.
I have {a} coins, I pay {b} and then {c}. How many coins do I have left?|{a} without {b} and without {c}?""".replace("\n", "|").split("|")


def three(r):
    """Returns (question, answer) for three numbers, computed in two steps: 12 + 30 = 42, 42 + 7 = 49."""
    while True:
        most = r.choice([10, 20, 50, 99])
        a, b, c = (r.randint(1, most) for _ in range(3))
        s, t = r.choice([("+", "+"), ("+", "+"), ("+", "+"), ("+", "-"), ("-", "+"), ("-", "-")])
        half = a + b if s == "+" else a - b
        whole = half + c if t == "+" else half - c
        if half >= 0 and whole >= 0 and not withheld(a, b) and not (half < 100 and withheld(half, c)):
            break
    answer = f"{a} {s} {b} = {half}, {half} {t} {c} = {whole}."
    if s == t == "+" and r.random() < 0.4:
        return r.choice(TOGETHER).format(a=a, b=b, c=c, things=r.choice(PLURALS), who=r.choice(NAMES)), answer
    if t == "-" and r.random() < 0.4:
        return r.choice(LEFT_OVER if s == "-" else IN_AND_OUT).format(a=a, b=b, c=c, things=r.choice(PLURALS), who=r.choice(NAMES)), answer
    word = {"+": "plus", "-": "minus"}
    return r.choice(THREE).format(a=a, b=b, c=c, s=s, t=t, ss=word[s], tt=word[t]), answer


def pair(r):
    while True:
        kind = r.random()
        a, b = (r.randint(0, 99), r.randint(0, 99)) if kind < 0.65 else (r.randint(0, 20), r.randint(0, 20)) if kind < 0.8 else (r.randint(10, 99), r.randint(0, 9))
        if r.random() < 0.5:
            a, b = b, a
        if kind > 0.92 and a + b > 99:
            a, b = a // 2, b // 2
        if not withheld(a, b):
            return a, b


def sum_(r):
    """Returns (question, answer) for a sum or a difference."""
    if r.random() < 0.22:
        return three(r)
    a, b = pair(r)
    plus = r.random() < 0.5
    if not plus and a < b and r.random() < 0.92:
        a, b = b, a
    result = f"{a} + {b} = {a + b}." if plus else f"{a} - {b} = {a - b}."
    form = r.random()
    if form < 0.12 and (plus or a >= b) and min(a, b) > 1:
        return r.choice(MORE if plus else LESS).format(a=a, b=b, things=r.choice(PLURALS), who=r.choice(NAMES)), result
    wordings = PLUS if plus else MINUS
    if form < 0.17:  # "twenty-one-eight" is not a question
        return r.choice([w for w in wordings if "+" not in w and "-" not in w]).format(a=in_words(a), b=in_words(b)), result
    return r.choice(wordings).format(a=a, b=b), result


def numbers(low, high, step=1):
    return ", ".join(str(n) for n in range(low, high + step, step)) + "."


def count(r):
    kind = r.random()
    if kind < 0.5:
        n = r.choice([5, 10, r.randint(1, 20), r.randint(1, 20), r.randint(1, 30), r.randint(20, 100), r.choice([20, 25, 30, 40, 50, 60, 75, 80, 100, 100, 100])])
        shown = in_words(n) if r.random() < (0.5 if n <= 20 else 0.25) else n
        return r.choice(["Count to {}.", "Count to {}.", "count to {}", "Can you count to {}?", "Please count to {}.", "Count from 1 to {}.", "Count from one to {}.", "Count up to {}.", "Can you count up to {}?", "Count to {} for me.", "Count to {}, please.", "Count all the way to {}.", "I want you to count to {}.", "Could you count to {}?", "Now count to {}.", "Count, from 1 to {}.", "The numbers up to {}.", "Write the numbers from 1 to {}.", "List the numbers 1 to {}.", "Show me how to count to {}.", "Can you go from 1 to {}?", "I would like you to count up to {}."]).format(shown), numbers(1, n)
    if kind > 0.93:
        step = r.choice([2, 5, 10])
        n = step * r.randint(3, 100 // step if step > 2 else 20)
        return r.choice(["Count to {n} in {s}s.", "Count by {s}s to {n}.", "Count to {n} by {s}s.", "Count in steps of {s} to {n}.", "Count up to {n} in steps of {s}.", "Count by {s} until {n}.", "Every {s} up to {n}."]).format(n=n, s=step), numbers(step, n, step)
    low = r.choice([r.randint(0, 40), r.randint(0, 95)])
    high = min(100, low + r.choice([r.randint(1, 14), r.randint(1, 14), r.randint(5, 50)]))
    words = r.random() < (0.4 if high <= 20 else 0.1)
    low_, high_ = (in_words(low), in_words(high)) if words else (low, high)
    if kind < 0.7:
        return r.choice(["Count from {} to {}.", "Can you count from {} to {}?", "count from {} to {}", "Please count from {} to {}.", "Name the numbers from {} to {}.", "Go from {} to {}.", "List the numbers {} to {}.", "Write down {} to {}.", "Begin at {} and count up to {}.", "Count on from {} to {}.", "Count up from {} to {}."]).format(low_, high_), numbers(low, high)
    if kind < 0.8:
        n = r.choice([r.randint(3, 20), r.randint(3, 20), r.randint(10, 60)])
        shown = in_words(n) if r.random() < 0.4 else n
        return r.choice(["Count down from {}.", "Count backwards from {}.", "Count backwards from {} to 1.", "Can you count down from {}?", "Count down from {} to 1.", "Count backward from {}.", "Please count back from {}.", "Count from {} down to 1.", "Count from {} to 1.", "Do a countdown from {}."]).format(shown), numbers(n, 1, -1)
    if kind < 0.9:
        n = r.randint(0, 99)
        return (f"What comes after {n}?", f"{n + 1} comes after {n}.") if r.random() < 0.5 else (f"What number comes before {n + 1}?", f"{n} comes before {n + 1}.")
    a, b = r.sample(range(100), 2)
    return (f"Which is bigger, {a} or {b}?", f"{max(a, b)} is bigger.") if r.random() < 0.5 else (f"Which number is smaller, {a} or {b}?", f"{min(a, b)} is smaller.")


SPELL = """How do you spell {w}?|How do you spell {w}?|How do you spell "{w}"?|Spell {w}.|Spell the word {w}.|Spell the word {w}.|Spell the word "{w}".|spell {w}|Can you spell {w}?|Please spell {w}.|How is {w} spelled?|How is the word {w} spelled?
how do you spell {w}|Spell {w} for me.|Can you spell the word {w}?|What are the letters of {w}?""".replace("\n", "|").split("|")


def spell(r, words):
    """words: sorted by frequency, the most common first."""
    w = words[int(len(words) * r.random() ** 1.5)] if r.random() < 0.9 else r.choice([r.choice(NAMES), r.choice(TOWNS), r.choice(ANIMALS + COLORS + WORDS)])
    if word_withheld(w):
        return spell(r, words)
    letters, kind = "-".join(w), r.random()
    if kind < 0.75:
        return r.choice(SPELL).format(w=w), f"{letters}."
    if kind < 0.88:
        return r.choice(["How many letters are in {w}?", "How many letters does {w} have?", 'How many letters are in the word "{w}"?', "How many letters are in the word {w}?", "How many letters has {w}?", "How long is the word {w}?"]).format(w=w), f"{letters}: {len(w)} letters."
    if kind < 0.92:
        return f"What is the first letter of {w}?", f"The first letter of {w} is {w[0]}."
    if kind < 0.96:
        return f"What is the last letter of {w}?", f"{letters}: the last letter is {w[-1]}."
    return r.choice(["Spell {w} backwards.", "How do you spell {w} backwards?"]).format(w=w), "-".join(reversed(w)) + "."


COUNTRIES = """Brazil Mexico Chile Iceland Turkey Vietnam Thailand Morocco Finland Denmark Belgium Hungary Romania Bulgaria Croatia Ukraine Argentina Bolivia Cuba Jamaica Nepal Mongolia Iran Iraq Syria Ghana Nigeria
Ethiopia Tanzania Uganda Zambia Australia America Switzerland Korea Indonesia Malaysia Pakistan Algeria Tunisia Libya Colombia Venezuela""".split()
PEOPLE = """Napoleon|Albert Einstein|Isaac Newton|Julius Caesar|Cleopatra|Mozart|Beethoven|Shakespeare|Leonardo da Vinci|Marie Curie|George Washington|Abraham Lincoln|Gandhi|Nelson Mandela|Picasso|Van Gogh|Columbus|Marco Polo|Plato|Aristotle
Socrates|Galileo|Darwin|Alexander the Great|Queen Victoria|Martin Luther King|Elvis Presley|Charlie Chaplin|Walt Disney|Bill Gates|Ada Lovelace|Alan Turing|Nikola Tesla|Thomas Edison|Homer|Dante|Goethe|Kant|Bach|Chopin|Genghis Khan""".replace("\n", "|").split("|")
TOPICS = """gravity|electricity|evolution|democracy|inflation|photosynthesis|relativity|quantum physics|the internet|black holes|DNA|climate change|the stock market|magnetism|nuclear power|the French Revolution|the Roman Empire|the Cold War
World War II|the Middle Ages|the Renaissance|the Industrial Revolution|capitalism|philosophy|algebra|geometry|calculus|probability|vaccines|the immune system|blockchain|machine learning|neural networks|computers|programming|economics
taxes|insurance|football rules|chess openings|opera|jazz|modern art|architecture|volcanoes|earthquakes|tides|the seasons|the brain|cancer|diabetes|viruses|antibiotics|atoms|light|sound|energy|entropy|the periodic table|plate tectonics
the water cycle|the solar system|galaxies|satellites|rockets|engines|batteries|airplanes|submarines|cars|microwaves|telephones|cameras|elevators|refrigerators|radios|clouds|lightning|rainbows|tornadoes|glaciers|dinosaurs""".replace("\n", "|").split("|")
MACHINES = "airplanes computers cars rockets engines batteries submarines cameras radios clocks elevators helicopters telescopes magnets lasers robots fridges telephones boats bikes trains televisions phones printers sails windmills".split()
VERBS = "fly work swim move float talk think run stop start turn sink break grow burn shine".split()
WORKS = """a poem|a song|an essay|a letter|an email|a speech|a haiku|a rap|a report|an article|a summary|a blog post|a joke book|a play|a review|a cover letter|a business plan|a tweet|an advertisement|a recipe""".split("|")
INVENTED = "telephone|light bulb|telescope|airplane|radio|car|computer|printing press|steam engine|camera|bicycle|internet|television|compass|microscope|piano|paper|wheel|thermometer|dynamite".split("|")
BOOKS = "Hamlet|Don Quixote|War and Peace|Harry Potter|Moby Dick|The Odyssey|Romeo and Juliet|Robinson Crusoe|Faust|Emma|Dracula|Frankenstein|The Hobbit|Oliver Twist|Alice in Wonderland|Pinocchio|The Bible|Les Miserables".split("|")
CODE = "Python|Java|C|Rust|JavaScript|C++|Go|SQL|HTML|Ruby|Swift|PHP|Haskell".split("|")
TASKS = """sorts a list|reads a file|adds two numbers|prints hello world|finds prime numbers|counts words|draws a circle|downloads a page|reverses a string|plays chess|computes Fibonacci numbers|opens a window|parses JSON|finds the largest number""".split("|")
HOWTO = """fix a bicycle|repair a car|build a house|cook rice|bake bread|make pasta|make lasagna|tie a tie|play poker|learn French|lose weight|write a book|get rich|start a company|find a job|install Linux|clean a carpet|grow tomatoes|train a dog|change a tire
paint a wall|knit a sweater|make cheese|boil an egg|fry fish|sew a button|remove a stain|buy a house|invest money|pay taxes|get a passport|play the guitar|swim faster|run a marathon|sleep better|stop smoking|write a resume|make a website""".replace("\n", "|").split("|")
PHRASES = "hello|goodbye|thank you|good morning|good night|please|I love you|yes|no|water|bread|friend|house|dog|cat|how are you|where is the station|my name is Anna|happy birthday|the sky is blue|I am hungry|see you tomorrow|book|sun|red|one, two, three".split("|")
EVENTS = """the world cup|the football world cup|the Olympic Games|the election|the Super Bowl|the Tour de France|Wimbledon|the Nobel prize|the Oscar for best film|the chess championship|the Champions League|the war""".split("|")
THINKING = "Is God real?|Should I get married?|Am I beautiful?|Will I be rich?|Can I trust my boss?|Should I buy a car?|Do aliens exist?|What will happen tomorrow?|What is the best phone?|What should I wear?|Who will win the election?|Should I see a doctor?|My head hurts, what should I take?|Is it safe to eat raw eggs?|Which movie should I watch?|What is the best restaurant in town?|What is love?|What is the meaning of life?|Why are we here?|What is happiness?|What is time?|What is the news today?|What happened today?|Search the web for shoes.|Open the door.|Turn on the light.|Play some music.|Set a timer for five minutes.|Call my mother.|Send an email to my boss.|Order a pizza.|Book a flight to Rome.|Show me a picture.|Draw a cat.|Read my mail.|Remind me at eight.|What is the price of gold?|How much does a car cost?|Who is the president?|Who is the king of England?|Who is the richest man in the world?|Solve this equation: 2x + 3 = 7.|What is the square root of 81?|What is pi?|Is 17 a prime number?|What is 10 percent of 50?|Convert 5 miles to kilometers.|How many feet are in a mile?|What is half of 36?|Is this sentence correct?|Correct my grammar.|Summarize this text.|What does HTTP mean?|What is the boiling point of water?|How far is the moon?|How old is the Earth?|What is the speed of light?|How many people live on Earth?|Which is the largest ocean?|What is the longest river?|What is the highest mountain?|How many bones does a human have?|What is the chemical formula of water?|Give me some advice.|Teach me something.|Play a game with me.|Do my homework.|Sing a song.|Give me three ideas for dinner.|What can I cook with eggs and flour?|Plan a trip to Spain.|What rhymes with moon?|Make a list of ten animals.|Name five fruits.|Who are the Beatles?|What does carpe diem mean?|What is a synonym of big?".split("|")


def honest(r):
    """Returns a question beyond the model, and its answer."""
    c, k = r.choice, r.randrange(30)
    big = (r.randint(100, 9999), r.randint(10, 9999))
    if k < 3:
        p = c(PHRASES)
        q = c(["Say {p} in {l}.", "Say {p} in {l}.", 'Say "{p}" in {l}.', "Translate {p} into {l}.", 'Translate "{p}" to {l}.', "How do you say {p} in {l}?", "What is {p} in {l}?", "What does {p} mean in {l}?", "How do I say '{p}' in {l}?", "say {p} in {l}"]).format(p=p, l=c(LANGUAGES))
    elif k < 4:
        q = c(["Do you speak {l}?", "Can you speak {l}?", "Speak {l}.", "Can we talk in {l}?", "Teach me {l}.", "How do I learn {l}?"]).format(l=c(LANGUAGES))
    elif k < 6:
        q = c(["Who was {p}?", "Who is {p}?", "When was {p} born?", "Where was {p} born?", "What did {p} do?", "When did {p} die?", "What do you know about {p}?", "Have you heard of {p}?", "How did {p} die?", "who was {p}"]).format(p=c(PEOPLE))
    elif k < 9:
        q = c(["What is {t}?", "Explain {t}.", "Can you explain {t}?", "Explain {t} to me.", "How does {t} work?", "How do {t} work?", "What causes {t}?", "Why is {t} important?", "What do you know about {t}?", "Give me a summary of {t}.", "Describe {t}.", "what is {t}",
            "What do you think about {t}?", "I want to learn about {t}.", "Help me understand {t}."]).format(t=c(TOPICS))
    elif k < 10:
        q = c(["How do {m} {v}?", "Why do {m} {v}?", "How can {m} {v}?", "How does a {s} {v}?", "What makes {m} {v}?"])
        m = c(MACHINES)
        q = q.format(m=m, s=m[:-1], v=c(VERBS))
    elif k < 12:
        q = c(["Write {w} about {t}.", "Write {w} about {t}.", "Can you write {w} about {t}?", "Please write {w} about {t}.", "Write me {w}.", "Compose {w} about {t}.", "Help me write {w}.", "I need {w} about {t}."]).format(w=c(WORKS), t=c([c(TOPICS), "a " + c(THINGS), "my " + c(RELATIVES), c(TOWNS), c(FOODS), "love", "spring", "the sea"]))
    elif k < 14:
        q = c(["Write a {l} program that {t}.", "Write a program in {l} that {t}.", "Write a function that {t}.", "Can you write {l} code that {t}?", "Write {l} code.", "Can you program in {l}?", "Write a script that {t}.", "Show me a {l} program.", "How do I write a {l} function that {t}?",
            "What is {l}?", "Fix my {l} code."]).format(l=c(CODE), t=c(TASKS))
    elif k < 16:
        q = c(["How do I {h}?", "How can I {h}?", "How do you {h}?", "Can you help me {h}?", "Teach me how to {h}.", "What is the best way to {h}?", "I want to {h}. What should I do?", "how to {h}", "Give me tips to {h}.", "Explain how to {h}."]).format(h=c(HOWTO))
    elif k < 17:
        f = c(FOODS)
        q = c(["Give me a recipe for {f}.", "Can you give me a recipe for {f}?", "How do I make {f}?", "What is in {f}?", "How many calories are in {f}?", "Do you have a recipe for {f}?", "Is {f} healthy?", "I want to cook {f}. How?"]).format(f=f)
    elif k < 20:
        a, b = (r.randint(2, 99), r.randint(2, 99))
        q = c(["What is {a} times {b}?", "What is {a} * {b}?", "What is {a} x {b}?", "{a} * {b}", "How much is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} divided by {b}?", "{a} / {b}", "Divide {a} by {b}.", "{a}*{b}=?", "What is {a} squared?", "What is {a} to the power of {b}?",
            "What is {x} + {y}?", "What is {x} plus {y}?", "What is {x} - {y}?", "{x} + {y}", "How much is {x} + {y}?", "What is the square root of {x}?", "what is {a} times {b}"]).format(a=a, b=b, x=big[0], y=big[1])
    elif k < 22:
        q = c(["What is the capital of {c}?", "Where is {c}?", "How many people live in {c}?", "What language do they speak in {c}?", "What is the population of {c}?", "Who is the president of {c}?", "What is the flag of {c}?", "When did {c} become free?", "What money do they use in {c}?",
            "How big is {c}?", "What is the history of {c}?", "How do I get to {c}?"]).format(c=c(COUNTRIES))
    elif k < 23:
        q = c(["What can I see in {t}?", "How far is {t}?", "How do I get to {t}?", "What is the weather in {t}?", "Which country is {t} in?", "How many people live in {t}?", "Is {t} nice?", "Find a hotel in {t}.", "Book a flight to {t}."]).format(t=c(TOWNS))
    elif k < 24:
        y = r.randint(1400, 2030)
        q = c([f"Who won {c(EVENTS)} in {y}?", f"Who won {c(EVENTS)}?", f"When was {c(EVENTS)}?", f"What happened in {y}?", f"Who was the king in {y}?", f"Who won {c(EVENTS)} last year?", f"Where was {c(EVENTS)} in {y}?"])
    elif k < 25:
        q = c(["Who invented the {i}?", "When was the {i} invented?", "How does a {i} work?", "Who made the first {i}?", "How do you build a {i}?"]).format(i=c(INVENTED))
    elif k < 26:
        q = c(["Who wrote {b}?", "What is {b} about?", "When was {b} written?", "Have you read {b}?", "Who is the hero of {b}?", "Quote {b}."]).format(b=c(BOOKS))
    elif k < 27:
        q = c([f"How much does a {c(THINGS)} cost?", f"Where can I buy a {c(THINGS)}?", f"How is a {c(THINGS)} made?", f"How much does a {c(JOBS)} earn?", f"How do I become a {c(JOBS)}?", f"What does the word {c(WORDS)} mean in Latin?", f"Which {c(THINGS)} is the best?",
            f"How long does a {c(ANIMALS)} live?", f"How fast is a {c(ANIMALS)}?", f"How heavy is a {c(ANIMALS)}?", f"What is the Latin name of the {c(ANIMALS)}?"])
    else:
        q = c(THINKING)
    return q, c([HONEST] * 4 + ["I do not know that. " + HONEST])


LISTS = [("Say the alphabet.|Can you say the alphabet?|What is the alphabet?|Tell me the ABC.", ", ".join("abcdefghijklmnopqrstuvwxyz") + "."),
    ("What are the days of the week?|Name the days of the week.|Tell me the days of the week.", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday."),
    ("What are the months of the year?|Name the months.|Tell me the months of the year.", "January, February, March, April, May, June, July, August, September, October, November, December.")]


def listing(r):
    q, a = r.choice(LISTS)
    return r.choice(q.split("|")), a


def skill(r, words):
    """Returns (question, answer, whether the answer is exact)."""
    k = r.random()
    if k < 0.26:
        return *count(r), True
    if k < 0.55:
        return *spell(r, words), True
    if k < 0.57:
        return *listing(r), False
    return *honest(r), False


def common_words(texts, n=2500):
    """Returns the n most common short words of the texts, the most common first."""
    counts = collections.Counter()
    for text in texts:
        counts.update(re.findall(r"(?<![\w'])[a-z]{2,8}(?![\w'])", text))
    return [w for w, _ in counts.most_common(n)]
