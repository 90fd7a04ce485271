"""Phrases and words for the conversations of `memory_chat.py`."""

from skills import HONEST

# More heroes, things, food, names and places for the stories of gen_synth.py: with only its few words, the model learns to write about
# nothing else.
MORE = {
    "ANIM": """dragon robot princess prince king queen knight pirate wizard witch fairy giant elf unicorn mermaid dinosaur lion tiger panda penguin
        wolf snake crocodile giraffe zebra camel kangaroo koala whale dolphin shark octopus crab fish starfish snail spider bee butterfly ladybug ant worm
        caterpillar parrot crow swan goose chicken rooster hen chick cow horse donkey sheep deer moose raccoon otter seal bat lizard hamster rat badger mole
        weasel skunk chipmunk hippo rhino gorilla leopard llama ostrich peacock pigeon robin sparrow eagle seagull lobster shrimp jellyfish turkey bull calf
        foal fawn cub farmer baker sailor doctor nurse teacher astronaut snowman ghost monster troll clown cook painter singer dancer tailor gardener
        fisherman firefighter policeman postman librarian captain inventor scientist shepherd miller hunter woodcutter grandmother grandfather toad
        dwarf goblin genie scarecrow alien ninja cowboy""".split(),
    "OBJ": """guitar piano violin trumpet flute bicycle scooter skateboard sled wagon rocket airplane train truck car bus balloon candle lantern lamp
        mirror clock watch ring necklace crown sword shield rope ladder bucket shovel hammer saw paintbrush pencil pen crayon notebook letter postcard puzzle
        coin feather shell leaf flower rose tulip acorn pinecone seed pumpkin stick rock pebble pearl diamond telescope camera radio computer phone tent
        backpack suitcase pillow quilt sweater coat jacket shirt dress skirt sock shoe boot slipper glove mitten cap ribbon button needle thread basket bowl
        cup plate fork knife pot pan kettle teapot bottle jar barrel broom mop brush comb soap towel chair table bed sofa door window fence bridge tower
        castle cottage igloo wheel anchor sail oar net hook flag tambourine harp xylophone marble yo-yo robot puppet mask costume wand cloak potion egg nest
        bone collar leash saddle horseshoe cart sleigh snowball icicle star moon cloud rainbow raindrop stone brick log branch tree bush mushroom cactus
        ticket stamp calendar poster painting statue trophy medal whistle horn drumstick compass magnet battery flashlight glasses helmet belt wallet
        purse dollhouse rocking-horse jump-rope seesaw swing slide sandcastle surfboard canoe raft submarine helicopter tractor motorcycle ambulance
        fire-truck hot-air-balloon spaceship treasure-chest music-box snow-globe pocket-watch magic-carpet""".split(),
    "FOOD": """pizza pie pancake waffle muffin donut cupcake hamburger taco potato tomato orange peach melon strawberry lemon cherry coconut pineapple
        mango cucumber onion radish turnip pumpkin egg omelet sausage pretzel cracker biscuit brownie pudding lollipop candy chocolate""".split()
        + ["ice cream cone", "hot dog", "bowl of rice", "bowl of noodles", "slice of bread", "piece of cheese", "jar of honey", "glass of milk", "cup of tea",
           "bag of nuts", "apple pie", "birthday cake", "blueberry muffin", "gingerbread man", "cheese sandwich", "bunch of grapes"],
    "BOYS": """Peter Paul John James David Daniel Michael Adam Lucas Oliver Henry Arthur George Harry Felix Oscar Simon Victor Ivan Pedro Carlos Diego Ali
        Hassan Yusuf Chen Wei Kenji Hiro Raj Arjun Samir Amir Emil Anton Erik Lars Otto Bruno Marco Pablo Mateo Kwame Jamal Tariq Alex Charlie Freddie Toby
        Joshua""".split(),
    "GIRLS": """Mary Jane Alice Sarah Laura Julia Clara Sophie Olivia Grace Hannah Ruth Helen Eva Maria Sofia Elena Carmen Lucia Fatima Aisha Amina Mei Lin
        Yuki Hana Priya Anika Meera Zara Leah Naomi Ingrid Freya Astrid Greta Heidi Chloe Camille Bianca Paula Rita Vera Nadia Olga Daisy Poppy Violet Iris
        Molly""".split(),
    "ANAMES": """Rex Rusty Buddy Lucky Shadow Snowy Whiskers Mittens Socks Bandit Scout Ziggy Waffles Pickles Peanut Cookie Pumpkin Marble Clover Daisy Willow
        Bramble Thistle Flint Ember Sparky Blaze Storm Breezy Bubbles Splash Finny Goldie Penny Copper Bolt Gizmo Rolo Toto Momo Kiki Lulu Zuzu Bingo Domino
        Tango Fergus Barnaby Winston Matilda""".split(),
    "PLACE": ["the castle", "the mountain", "the island", "the zoo", "the circus", "the library", "the museum", "the station", "the desert", "the jungle",
        "the cave", "the village", "the city", "the bridge", "the harbor", "the bakery", "the toy shop", "the swimming pool", "the barn", "the orchard",
        "the valley", "the waterfall", "the moon", "the old house", "the tower"]}

# Answers to a question about a fact that was not told.
UNKNOWN = {
    "name": ["I do not know your name yet. What is your name?", "You have not told me your name yet."],
    "pet": ["I do not know. You have not told me about a pet.", "You have not told me that yet."],
    "password": ["I do not know. You have not told me one.", "You have not told me that yet."],
    "color": ["I do not know your favorite color. What is it?", "You have not told me that yet."],
    "town": ["I do not know where you live. You have not told me.", "You have not told me that yet."],
    "food": ["I do not know what you like to eat. You have not told me.", "You have not told me that yet."],
    "job": ["I do not know. You have not told me about your job.", "You have not told me that yet."],
    "age": ["I do not know how old you are. You have not told me.", "You have not told me that yet."],
    "relative": ["I do not know. You have not told me that name.", "You have not told me that yet."],
}

SMALL_TALK = [
    ("Hello|Hi|Hi there|Hey|hello|hi|hey|Good morning|Good evening|Good afternoon|Hello there|Hello!|Hi!|Hey you", "Hello! How can I help you?|Hi! It is nice to talk to you.|Hello! What would you like to talk about?|Hi! Would you like to hear a story?"),
    ("How are you?|How are you today?|how are you|How do you do?|How is it going?|Are you well?|How's it going?|hi, how are you?|Hello, how are you?", "I am fine, thank you. How are you?|I am doing well, thank you!|Very well, thank you. And you?"),
    ("I am fine.|I'm fine, thanks.|Good, thanks.|I'm good.|I am well, thank you.|Not bad.|fine", "I am glad to hear that. What would you like to do?|That is good. Shall I tell you a story?"),
    ("Who are you?|What are you?|Are you a robot?|Are you human?|Tell me about yourself.|who are you|What's your name?|What is your name?|Do you have a name?", HONEST + "|I am a small model that runs on this computer. I tell stories, do small sums and remember what you tell me."),
    ("What can you do?|what can you do|How can you help me?|What are you good at?|Help|help me|What do you know?", HONEST + "|I can tell stories, do small sums and remember what you tell me."),
    ("Thank you|Thanks|thanks|Thank you very much.|Thanks a lot!|Thank you so much!|Great, thanks.", "You are welcome!|I am happy to help.|Any time!"),
    ("Bye|Goodbye|bye bye|See you|See you tomorrow.|Good night|Good night!|Good night, sleep well.|See you later!|Bye, see you soon.|Good night and bye.|I have to go.|That's all.", "Goodbye! It was nice talking to you.|Bye! Have a nice day.|See you soon!"),
    ("Tell me a joke.|Do you know a joke?|Make me laugh.|tell me a joke|Another joke, please.", "Why did the teddy bear eat no cake? It was already stuffed.|What do you call a sleeping bull? A bulldozer.|Why did the bird go to school? To learn to tweet the right words.|What is brown and sticky? A stick.|Why can a nose not be twelve inches long? Then it would be a foot."),
    ("What is the weather like?|How is the weather?|Is it raining?|What's the weather today?|Will it rain tomorrow?", "I cannot see the weather from here. Please look out of the window.|I do not know, I cannot see outside."),
    ("What time is it?|What day is it today?|What is the date today?|what time is it", "I do not know, I have no clock.|I cannot see a clock or a calendar."),
    ("I am sad.|I feel sad.|I had a bad day.|I'm lonely.|I am not happy.|Today was hard.", "I am sorry to hear that. Would a nice story help?|I am sorry. I hope tomorrow will be better."),
    ("I am happy!|I had a good day.|I feel great.|Today was fun.|I'm so happy", "That is wonderful!|I am glad to hear that. What was the best part?"),
    ("I am bored.|I'm bored|I have nothing to do.|What should I do today?", "Shall I tell you a story?|You could read a book, draw a picture or go for a walk."),
    ("I am tired.|I can't sleep.|I am going to bed.|I'm sleepy.", "Then rest a little. Shall I tell you a quiet story?|Sleep well and have sweet dreams."),
    ("I am hungry.|I'm thirsty.|I want something to eat.", "Maybe you could have an apple or a sandwich.|Then it is time for something good to eat and drink."),
    ("Do you like dogs?|Do you like animals?|Do you like cats?|Do you like music?|Do you like stories?", "Yes, I like stories about them very much.|Yes! Shall I tell you a story about that?"),
    ("Are you alive?|Do you have feelings?|Do you sleep?|Do you eat?|Can you see me?", "No, I am only a program on your computer.|I am a program, so I cannot do that. But I can talk with you."),
    ("OK|Okay|ok|I see.|Nice.|Cool|Great!|Wow|Yes|Good", "Is there anything else you would like?|What shall we do next?|Good! What would you like now?"),
    ("I like you.|You are nice.|You are clever.|Good job!|Well done.", "Thank you! I like talking with you.|That is kind of you."),
    ("Can you remember things?|Will you remember what I say?|Do you have a good memory?|Can you keep a secret?", "Yes, I remember what you tell me in this chat.|Yes. Tell me, and I will keep it in mind."),
]
SMALL_TALK = [(q.split("|"), a.split("|")) for q, a in SMALL_TALK]

STORY_ASK = """Tell me a story about {}.|Tell me a story about {}.|Tell me a story about {}.|Tell me a short story about {}.|tell me a story about {}|Can you tell me a story about {}?
Could you tell me a story about {}?|Please tell me a story about {}.|Write a story about {}.|Write me a short story about {}.|I want a story about {}.|I would like to hear a story about {}.
I'd like a story about {}.|Make up a story about {}.|A story about {}, please.|story about {}|Do you know a story about {}?|Tell me about {}.|Tell a story with {} in it.|Tell me a story with {}.
How about a story about {}?|Let's have a story about {}.|Tell me a bedtime story about {}.|Now tell me a story about {}.|Give me a story about {}.|a story about {}|Once more, please: a story about {}.
Tell me a tale about {}.|Tell a tale about {}.|I would love a tale of {}.|Write a little tale about {}.""".replace("\n", "|").split("|")
ANY_STORY = "Tell me a story.|Tell me a story|tell me a story|Can you tell me a story?|I want to hear a story.|Another story, please.|Tell me another story.|One more story!|Tell me a bedtime story.|Please tell me a story.|Another one, please.|Tell me something nice.|Do you know a story?|story".split("|")
AFTER_STORY = [(["Thank you!", "That was nice.", "I like this story.", "What a good story!", "That was a lovely story.", "Nice story", "Great story, thanks."],
    ["You are welcome! Would you like another one?", "I am glad you liked it.", "Thank you! Shall I tell you one more?"])]
PASSAGE_ACK = ["Thank you for sharing that.", "That is interesting.", "Thank you, I have read it.", "I see. What happens next?", "That is a nice passage.", "I like how it is told."]
HELLO = ["Hello", "Hi", "Hey", "Hello there", "Good morning", "Hi there"]
