"""Draw instructions and answers from a small grammar: what tiny language models are trained on.

Six tasks, each on facts drawn at random. What an answer says follows from its question; how it says
it is drawn from a few phrasings, so no model can foresee every word. The system prompt decides
whether the answer is short or detailed. All text here and from here is this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

Speak = Callable[[Random, bool], list[str]]
"""Gives the sentences of an answer: drawn with the random numbers, and detailed or short."""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction, and how it is answered.

    Attributes:
        task: Name of the task.
        system_prompt: How to answer.
        question: What to do, and the facts to do it with.
        speak: See Speak.
        detailed: Whether the system prompt asks for a detailed answer.
    """

    task: str
    system_prompt: str
    question: str
    speak: Speak
    detailed: bool

    def answer(self, random: Random) -> str:
        """Draw one answer of many; all say the same."""
        return " ".join(self.speak(random, self.detailed))


SHORT = (
    "You are a helpful assistant. Keep the answer short.",
    "Answer in one or two sentences.",
    "You are busy. Say only what matters.",
    "Be brief and correct.",
)
DETAILED = (
    "You are a helpful assistant. Give a detailed answer.",
    "Explain your answer step by step.",
    "You are a teacher. Leave nothing out.",
    "Answer in full and be friendly.",
)


def words(text: str) -> tuple[str, ...]:
    """Split at spaces."""
    return tuple(text.split())


WOMEN = words("Anna Clara Emma Hana Ines Julia Lena Maria Nora Olga Rosa Sara")
MEN = words("Adam Ben David Erik Hugo Ivan Karl Leo Omar Paul Tom Yusuf")
TOWNS = words("Lund Porto Riga Turin Ghent Bergen Cork Delft Graz Split Tartu York")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
COLOURS = words("red blue green black white yellow grey brown")
JOBS = words("baker teacher farmer painter nurse driver doctor builder singer cook")
HOBBIES = (
    "chess",
    "music",
    "football",
    "reading",
    "dancing",
    "swimming",
    "old films",
    "long walks",
)
PETS = words("cat dog horse rabbit parrot turtle")
THINGS = words("lamp key drum book coat ladder basket mirror kettle chair clock box")
ROOMS = words("kitchen garden hall cellar attic office garage school library shop")
GOODS = words("apples eggs pears lemons candles plates cups loaves onions melons boxes spoons")
TIMES = ("at noon", "at six", "in the morning", "in the evening", "at nine", "after lunch")
WEATHER = ("heavy rain", "thick fog", "bright sun", "strong wind", "light snow", "a cold night")
PROBLEMS = (
    ("the crane is broken", "call the mechanic"),
    ("the roof lets in water", "buy new tiles"),
    ("the lift does not move", "use the stairs"),
    ("two people are ill", "ask for help"),
    ("the lights went out", "check the cables"),
    ("the keys are lost", "change the locks"),
    ("the storm broke a window", "order new glass"),
    ("the water is too cold", "repair the heating"),
)
SITES = (
    ("harbour", "ships", "arrived", "left"),
    ("library", "books", "went out", "came back"),
    ("station", "trains", "were on time", "were late"),
    ("museum", "guests", "came in", "bought a picture"),
    ("clinic", "patients", "were seen", "went home"),
    ("market", "farmers", "sold fruit", "sold cheese"),
    ("school", "children", "stayed for lunch", "played outside"),
    ("hotel", "guests", "arrived", "asked for tea"),
)
DISHES = ("soup", "stew", "pie", "salad", "curry", "cake")
FOODS = words("onions carrots beans potatoes lemons mushrooms apples leeks")
CUTS = ("wash", "peel", "chop", "slice")
HEATS = ("fry them in butter", "boil them in water", "roast them with oil", "steam them")
ADDITIONS = ("rice", "salt and pepper", "cream", "garlic", "flour", "honey")
SIDES = ("bread", "mint", "cheese", "butter", "nuts", "tea")


def draw(random: Random) -> Instruction:
    """Draw an instruction: its task, its system prompt and its facts, in this order."""
    task = random.choice(list(TASKS))
    detailed = random.random() < 0.5
    system_prompt = random.choice(DETAILED if detailed else SHORT)
    question, speak = TASKS[task](random)
    return Instruction(
        task=task, system_prompt=system_prompt, question=question, speak=speak, detailed=detailed
    )


def report(random: Random) -> tuple[str, Speak]:
    """Summarise a report of a day at a place."""
    site, who, did, also = random.choice(SITES)
    name, town, day = person(random), random.choice(TOWNS), random.choice(DAYS)
    first, second = random.sample(range(2, 60), 2)
    weather, (problem, remedy) = random.choice(WEATHER), random.choice(PROBLEMS)
    ask = random.choice(
        ("Summarise this report.", "What does this report say?", "Retell the report in your words.")
    )
    question = (
        f"{ask}\nSite: {site} of {town}. Day: {day}. Author: {name}. Weather: {weather}. "
        f"{who.capitalize()} that {did}: {first}. {who.capitalize()} that {also}: {second}. "
        f"Problem: {problem}. Plan: {remedy}."
    )

    def speak(random: Random, detailed: bool) -> list[str]:
        opening = (
            f"On {day} {name} wrote from the {site} of {town}.",
            f"{name} reports from the {site} of {town} on {day}.",
            f"The report by {name} is about {day} at the {site} of {town}.",
        )
        counts = (
            f"In all {first} {who} {did} and {second} {who} {also}.",
            f"There were {first} {who} that {did} and {second} that {also}.",
        )
        sky = (f"The weather brought {weather}.", f"It was a day of {weather}.")
        ending = (
            f"The problem is that {problem}, so the plan is to {remedy}.",
            f"Because {problem}, they will {remedy}.",
        )
        middle = [random.choice(counts), random.choice(sky)] if detailed else []
        return [random.choice(opening), *middle, random.choice(ending)]

    return question, speak


def portrait(random: Random) -> tuple[str, Speak]:
    """Write sentences about a person from a list of facts."""
    name = person(random)
    she, her = ("She", "her") if name in WOMEN else ("He", "his")
    job, town, hobby = random.choice(JOBS), random.choice(TOWNS), random.choice(HOBBIES)
    year, age = random.randrange(1990, 2020), random.randrange(30, 60)
    pet, colour = random.choice(PETS), random.choice(COLOURS)
    facts = [
        f"job: {job}",
        f"town: {town}",
        f"likes: {hobby}",
        f"age: {age}",
        f"there since: {year}",
        f"pet: {colour} {pet}",
    ]
    random.shuffle(facts)
    ask = random.choice(("Write a text from these facts.", "Turn the list into sentences."))
    question = f"{ask}\nname: {name}; " + "; ".join(facts)

    def speak(random: Random, detailed: bool) -> list[str]:
        opening = (
            f"{name} is a {job} from {town}.",
            f"In {town} lives a {job} whose name is {name}.",
            f"This is {name}, who works as a {job} in {town}.",
        )
        past = (
            f"{she} is {age} years old and has lived there since {year}.",
            f"{she} came there in {year} and is now {age} years old.",
        )
        love = (
            f"In {her} free time {name} likes {hobby}.",
            f"{she} is very fond of {hobby}.",
        )
        animal = (f"At home {she.lower()} has a {colour} {pet}.", f"{she} owns a {colour} {pet}.")
        middle = [random.choice(past), random.choice(love)] if detailed else []
        return [random.choice(opening), *middle, random.choice(animal)]

    return question, speak


def order(random: Random) -> tuple[str, Speak]:
    """Turn a note into the confirmation of an order."""
    name, day, time = person(random), random.choice(DAYS), random.choice(TIMES)
    goods = random.sample(GOODS, 3)
    counts = [random.randrange(2, 30) for _ in goods]
    lines = [f"{count} {good}" for count, good in zip(counts, goods, strict=True)]
    ask = random.choice(
        ("Confirm this order politely.", "Write an answer to this note from a customer.")
    )
    question = f"{ask}\n{name}, {day} {time}: " + ", ".join(lines) + "."

    def speak(random: Random, detailed: bool) -> list[str]:
        thanks = (f"Thank you for your order, {name}.", f"Dear {name}, thank you for your note.")
        ready = (
            f"We will bring {listing(lines)} on {day} {time}.",
            f"On {day} {time} you will get {listing(lines)}.",
            f"Your {listing(lines)} will be ready on {day} {time}.",
        )
        total = (
            f"We start with the {goods[0]} and pack the {goods[2]} last.",
            f"First we pack the {goods[0]}, then the {goods[1]} and then the {goods[2]}.",
        )
        close = ("Please call us if anything changes.", "We are glad to help you again.")
        tail = [random.choice(total), random.choice(close)] if detailed else []
        return [random.choice(thanks), random.choice(ready), *tail]

    return question, speak


def search(random: Random) -> tuple[str, Speak]:
    """Find a thing in a story of who took what where."""
    names, things, rooms = people(random, 3), random.sample(THINGS, 3), random.sample(ROOMS, 3)
    days = random.sample(DAYS, 3)
    story = [
        f"{name} {random.choice(('took', 'carried', 'brought'))} the {thing} to the {room} on {day}"
        for name, thing, room, day in zip(names, things, rooms, days, strict=True)
    ]
    wanted = random.randrange(3)
    name, thing, room, day = names[wanted], things[wanted], rooms[wanted], days[wanted]
    ask = random.choice(
        (
            f"Where is the {thing} now, and who knows about it?",
            f"I am looking for the {thing}. Who moved it?",
            f"Who had the {thing}, and where is it?",
        )
    )
    question = ". ".join(story) + f".\n{ask}"
    others = [index for index in range(3) if index != wanted]

    def speak(random: Random, detailed: bool) -> list[str]:
        found = (
            f"The {thing} is in the {room}, because {name} took it there.",
            f"You will find the {thing} in the {room}, where {name} left it.",
            f"{name} moved the {thing}, so it must be in the {room}.",
        )
        when = (f"That was on {day}.", f"This happened on {day}.")
        rest = " and ".join(f"the {things[index]} is in the {rooms[index]}" for index in others)
        elsewhere = (f"As for the other things, {rest}.", f"The story also says that {rest}.")
        close = (f"Ask {name} if you need help.", f"If it is not there, {name} will know more.")
        tail = [random.choice(elsewhere), random.choice(close)] if detailed else []
        return [random.choice(found), random.choice(when), *tail]

    return question, speak


def recipe(random: Random) -> tuple[str, Speak]:
    """Explain the steps of a recipe."""
    dish, food, cut = random.choice(DISHES), random.choice(FOODS), random.choice(CUTS)
    heat, addition, side = random.choice(HEATS), random.choice(ADDITIONS), random.choice(SIDES)
    count, minutes = random.randrange(2, 12), random.randrange(10, 60, 5)
    ask = random.choice(("Explain how to make it.", "How do I cook this?", "Describe the steps."))
    question = (
        f"Dish: {food} {dish}. Steps: {cut} {count} {food} / {heat} / add {addition} / "
        f"wait {minutes} minutes / serve with {side}.\n{ask}"
    )

    def speak(random: Random, detailed: bool) -> list[str]:
        opening = (
            f"To make {food} {dish}, {cut} {count} {food} and {heat}.",
            f"For a good {food} {dish} you {cut} {count} {food} and {heat}.",
        )
        adding = (
            f"Next, add {addition}, which gives the {dish} its taste.",
            f"Then add {addition} and stir the {dish} well.",
        )
        waiting = (
            f"After that it needs {minutes} minutes on the stove.",
            f"Let it cook for {minutes} minutes.",
        )
        ending = (
            f"Finally, serve the {dish} with {side}.",
            f"Enjoy your {dish} with {side}.",
        )
        middle = [random.choice(adding), random.choice(waiting)] if detailed else []
        return [random.choice(opening), *middle, random.choice(ending)]

    return question, speak


def advice(random: Random) -> tuple[str, Speak]:
    """Say which of two things is cheaper or lighter."""
    thing, (one, two) = random.choice(THINGS), random.sample(COLOURS, 2)
    prices, weights = random.sample(range(10, 60), 2), random.sample(range(10, 60), 2)
    by_price = random.random() < 0.5
    figures, adjective = (prices, "cheaper") if by_price else (weights, "lighter")
    verb, unit = ("costs", "coins") if by_price else ("weighs", "grams")
    best = min(range(2), key=figures.__getitem__)
    chosen, other = (one, two) if best == 0 else (two, one)
    low, high = sorted(figures)
    extra = f"weighs {weights[best]} grams" if by_price else f"costs {prices[best]} coins"
    town = random.choice(TOWNS)
    ask = random.choice(
        (f"Which one is {adjective}?", f"I want the {adjective} one. Which should I take?")
    )
    question = (
        f"A shop in {town} has two things. The {one} {thing} costs {prices[0]} coins and weighs "
        f"{weights[0]} grams. The {two} {thing} costs {prices[1]} coins and weighs {weights[1]} "
        f"grams.\n{ask}"
    )

    def speak(random: Random, detailed: bool) -> list[str]:
        choice = (
            f"The {chosen} {thing} is {adjective}, because it {verb} {low} {unit}.",
            f"Take the {chosen} {thing}, which {verb} only {low} {unit}.",
            f"I would choose the {chosen} {thing}, since it {verb} {low} {unit}.",
        )
        contrast = (
            f"The {other} {thing} {verb} {high} {unit}, which is more.",
            f"In contrast, the {other} {thing} {verb} {high} {unit}.",
        )
        place = (f"You can get it in {town}.", f"Both are sold in {town}.")
        also = (f"The {chosen} {thing} {extra}.", f"Besides, it {extra}.")
        tail = [random.choice(also), random.choice(place)] if detailed else []
        return [random.choice(choice), random.choice(contrast), *tail]

    return question, speak


TASKS: Mapping[str, Callable[[Random], tuple[str, Speak]]] = {
    "report": report,
    "portrait": portrait,
    "order": order,
    "search": search,
    "recipe": recipe,
    "advice": advice,
}


def person(random: Random) -> str:
    """Draw a name."""
    return random.choice(WOMEN + MEN)


def people(random: Random, count: int) -> list[str]:
    """Draw different names."""
    return random.sample(WOMEN + MEN, count)


def listing(words: Sequence[str]) -> str:
    """Join with commas, and "and" before the last."""
    return ", ".join(words[:-1]) + f" and {words[-1]}"
