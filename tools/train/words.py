"""Word lists for facts and skills."""

NAMES = """Anna Ben Clara David Eva Frank Greta Henry Ines James Karen Liam Maria Nathan Olga Peter Quinn Rachel Simon Tina Ursula Victor
Wendy Xenia Yusuf Zara Ahmed Aisha Alice Amir Andrea Antonio Astrid Bianca Boris Bruno Carlos Carmen Chloe Chris Daniel Daria Diana Diego
Edith Edward Elena Elias Elise Emil Erik Fatima Felix Fiona Florian George Gina Hannah Hassan Helen Hiro Ian Ida Igor Irene Isaac Ivan
Jakob Jana Jasper Joan John Jonas Julia Kai Kira Klara Lars Laura Lena Lina Louis Lukas Magda Marco Martha Martin Mehdi Mina Miriam Mona
Nadia Nils Nora Oscar Otto Pablo Paul Paula Pia Priya Ralf Rita Robert Robin Rosa Samir Sara Sofia Stefan Sven Tara Thomas Tobias Vera
Viktor Walter Yara Yuki Zoe Mary Alex Sam Emma Noah Mia Ella Max Leo Lucy Jack Grace Hugo Ivy Owen Ruby Adam Kate Tom Lily""".split()
PET_NAMES = """Miso Rex Luna Bella Oscar Simba Nala Coco Rocky Daisy Ginger Felix Shadow Pepper Mochi Pickles Waffles Ziggy Bandit Cleo
Dash Echo Figaro Gizmo Hobbes Iggy Jasper Kiwi Loki Mango Noodle Olive Pumpkin Quincy Rusty Smokey Toffee Uno Velvet Whiskers Xena Yoyo
Zeus Archie Barney Cookie Dexter Elvis Fudge Goldie Harley Inky Jelly Koko Lucky Maple Nugget Otis Peanut Rolo Salty Tigger Winnie Bruno
Maxi Minka Mimi Bobby Snowy Spike Sparky Bubbles Fluffy Tiny Spot Rover""".split()
PETS = "dog cat rabbit hamster parrot goldfish turtle pony horse mouse lizard snake canary duck goat puppy kitten hedgehog frog bird".split()
TOWNS = """Paris London Berlin Madrid Rome Lisbon Vienna Oslo Dublin Prague Athens Cairo Nairobi Lima Boston Chicago Denver Seattle Austin
Toronto Montreal Sydney Tokyo Osaka Seoul Delhi Mumbai Zurich Geneva Basel Lyon Nice Munich Hamburg Milan Turin Porto Leeds York Bristol
Krakow Warsaw Budapest Helsinki Bergen Malmo Ghent Utrecht Portland Dallas Havana Quito Accra Lagos Tunis Izmir Perth Dunedin""".split()
COLORS = "red blue green yellow orange purple pink brown white black gold silver gray turquoise violet".split()
FOODS = """pizza pasta soup cake pancakes rice cheese bread sushi curry salad noodles chocolate apples cherries tacos pie honey potatoes carrots
beans nuts fish chicken eggs mushrooms onions tomatoes bananas grapes milk butter garlic peas spinach waffles cookies porridge sausages dumplings lasagna strawberries
peanuts oranges pears plums olives corn yogurt muffins toast oatmeal lentils broccoli cabbage pumpkin shrimp salmon tuna steak popcorn pretzels jam""".split()
JOBS = """teacher doctor nurse baker farmer driver painter cook singer pilot gardener writer builder student sailor plumber lawyer carpenter
dentist waiter clerk butcher tailor barber editor coach judge chemist engineer artist dancer shepherd miner soldier mechanic librarian scientist fisherman florist cleaner
photographer electrician programmer journalist actor guard hunter jeweller manager nanny optician potter receptionist translator vet zookeeper""".split()
WORDS = """apple river stone cloud tiger lemon garden winter silver rocket candle forest dragon pepper window planet button ladder marble
orchid pirate rabbit saddle tunnel velvet walnut yellow zebra anchor basket castle desert engine feather guitar hammer island jungle kettle
lantern magnet needle ocean pencil quartz ribbon sunset thunder umbrella violin whistle""".split()

ANIMALS = """dog cat horse lion tiger bear wolf fox rabbit mouse elephant giraffe zebra monkey panda koala kangaroo dolphin whale shark penguin owl eagle parrot duck goose swan
turtle frog snake lizard spider bee butterfly cow pig goat sheep donkey camel deer squirrel hedgehog otter seal octopus crab snail bat""".split()
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty""".split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
RELATIVES = """brother sister brother sister mother father friend best friend cousin daughter son wife husband uncle aunt grandmother grandfather neighbor boss teacher little brother
big sister older brother younger sister doctor roommate nephew niece mom dad grandma grandpa coach baby"""
RELATIVES = ["best friend", "little brother", "big sister", "older brother", "younger sister", "twin sister"] + [w for w in RELATIVES.split() if w not in ("best", "little", "big", "older", "younger")]
THINGS = """key book lamp ring hat phone umbrella wallet watch map letter bag ball camera guitar drum kite clock mirror candle basket bottle box cup bicycle radio ticket scarf coat knife
ladder hammer notebook pencil passport necklace teddy bear pot spoon toy flute helmet tent rope blanket pillow chair desk vase puzzle doll coin medal stamp bell glass brush
carpet jacket sweater telescope violin hat whistle laptop tablet kettle hose shovel bucket suitcase purse"""
THINGS = [w for w in THINGS.split() if w not in ("teddy", "bear")] + ["teddy bear"]
PLURALS = """sisters brothers children friends cousins sons daughters uncles aunts cats dogs books apples marbles coins stamps pencils shells cards chairs trees hats horses fish
chickens stones dolls kites cookies oranges tickets rings cars bicycles plants shirts balloons buttons keys boxes cups eggs goats lamps puzzles songs records postcards bottles""".split()
SPOTS = """in the drawer|under the mat|on the table|behind the door|in the kitchen|under the bed|on the shelf|in the garden|in the red box|in my pocket|next to the lamp|in the blue bag|behind the sofa|in the car
|on the roof|under the chair|in the cupboard|by the window|in the basket|in the old chest|under a stone|in the garage|on the desk|in the bathroom|behind the clock|under the stairs|at school|at the office|in the attic
|in the cellar|on the bench|inside the piano|in the fridge|under the pillow|near the gate|in the barn|on top of the wardrobe|in the green jar|between two books|in the hall"""
SPOTS = SPOTS.replace("\n", "").split("|")
PLACES = """a bakery|a school|a bank|a hospital|the library|the museum|a farm|a hotel|the airport|a shop|a restaurant|the post office|the zoo|a factory|an office|the harbor|a garage|the theater|a cafe|the station|the town hall|a laboratory""".split("|")
INSTRUMENTS = "violin piano guitar flute drums trumpet cello harp clarinet saxophone trombone accordion banjo organ ukulele oboe tuba harmonica bass recorder".split()
LANGUAGES = "French Spanish German Italian Russian Chinese Japanese Korean Arabic Hindi Portuguese Dutch Swedish Norwegian Polish Greek Turkish Latin Finnish Danish Hebrew Swahili Czech Hungarian".split()
STUDIES = "history math biology physics music law art chemistry medicine geography economics languages computer science philosophy engineering".replace("computer science", "astronomy").split()
ADJECTIVES = "happy sad tired excited hungry lonely proud nervous sick calm angry bored brave cold great thirsty curious cheerful sleepy worried".split()
FAVORITES = {
    "animal": ANIMALS, "pet": PETS, "food": FOODS, "color": COLORS, "city": TOWNS, "instrument": INSTRUMENTS, "language": LANGUAGES, "subject": STUDIES, "name": NAMES, "toy": THINGS,
    "fruit": "apple pear banana cherry plum peach mango lemon orange grape melon kiwi strawberry pineapple fig apricot raspberry".split(),
    "vegetable": "carrot potato tomato onion cabbage spinach pumpkin leek cucumber pea bean radish beet pepper".split(),
    "drink": "water tea coffee milk juice lemonade cocoa cola apple juice".replace(" apple juice", "").split(),
    "sport": "football tennis swimming running basketball hockey skiing chess golf boxing volleyball cycling rowing baseball rugby".split(),
    "season": "spring summer autumn winter".split(), "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "month": "January February March April May June July August September October November December".split(),
    "number": [str(n) for n in range(1, 100)], "game": "chess checkers cards hide and seek tag domino puzzles".replace("hide and seek", "hopscotch").split() + ["hide and seek"],
    "flower": "rose tulip daisy lily sunflower violet orchid poppy daffodil iris".split(), "tree": "oak pine birch willow maple apple cedar elm palm".split(),
    "hobby": "painting reading cooking dancing singing fishing drawing gardening knitting hiking sewing swimming".split(), "planet": "Mars Venus Saturn Jupiter Mercury Neptune Earth".split(),
    "bird": "robin owl eagle parrot swan crow sparrow penguin duck".split(), "dessert": "cake pie pudding cookies brownies".split() + ["ice cream"], "letter": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "country": "France Italy Spain Germany Japan China Egypt England Greece India Canada Kenya Peru Norway Brazil Mexico Chile Iceland Turkey".split()}
COLLECT = [w for w in PLURALS if PLURALS.index(w) > 9 and w not in ("chairs", "trees", "chickens", "goats", "cars", "eggs")]
