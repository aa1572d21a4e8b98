"""Draw short news articles and their highlights from a small grammar: what a tiny GPT-J learns.

An article has three to six sentences on one of eight topics. Its highlights say its main facts in
another order and in other words; further sentences state facts of the same kind (another town,
another number, another name) that do not belong there. All text here and from here is this
project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tiny_instructions import DAYS, TOWNS, words

SHARES = {2: (0.75, 0.25), 3: (0.44, 0.28, 0.28)}
"""How often a highlight has each of its two or three phrasings. Of three the last two begin alike:
that beginning is the likeliest one, but the first phrasing is the likeliest whole, which a beam
search finds and a greedy one does not."""

NAMES = words(
    "Adler Brandt Costa Ekman Garcia Hansen Ivanov Keller Lopez Moretti Olsen Rossi Silva Takeda "
    "Varga Weber"
)
HUNDREDS = range(100, 1000, 50)
TENS = range(10, 60)
DISASTERS = words("storm flood fire blizzard")
PROJECTS = words("bridge pool park theatre library tunnel")
TREASURES = words("painting crown violin statue clock carpet")
PLACES = words("museum castle palace church hotel")
VEHICLES = words("van taxi bus boat truck tent")
JOBS = words("baker teacher farmer painter nurse driver doctor cook")
CRAFT = words("ferry lift train balloon")
CAUSES = ("engine fault", "thick fog", "strong wind", "broken cable")
MAKERS = words("paper glass toy shoe cheese piano")
ANIMALS = words("tiger monkey parrot wolf zebra bear")
SPOTS = words("garden kitchen cellar garage barn tower")
HABITS = words("walk swim dance read sing paint")
GAINS = ("sleep better", "live longer", "earn more", "smile more", "worry less", "learn faster")


@dataclass(frozen=True, kw_only=True)
class Story:
    """What an article on one topic may say, each thing in a few phrasings.

    Attributes:
        lead: How it may begin.
        needed: Two sentences with facts of the highlights.
        others: Three sentences that highlights pass over; an article may lack them.
        highlights: Two, each in the phrasings that SHARES tells of.
    """

    lead: tuple[str, ...]
    needed: tuple[tuple[str, ...], ...]
    others: tuple[str, ...]
    highlights: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Article:
    """An article.

    Attributes:
        topic: Name of its topic.
        text: Its sentences.
        story: What it was drawn from.
    """

    topic: str
    text: str
    story: Story

    def summary(self, random: Random) -> str:
        """Draw the highlights; all that can be drawn say the same."""
        return " ".join(
            random.choices(phrasings, SHARES[len(phrasings)])[0]
            for phrasings in self.story.highlights
        )


def draw(random: Random) -> Article:
    """Draw an article: its topic, its facts, and how they are told."""
    topic = random.choice(list(TOPICS))
    story = TOPICS[topic](random)
    rest = [random.choice(phrasings) for phrasings in story.needed]
    rest += random.sample(story.others, random.randrange(len(story.others) + 1))
    random.shuffle(rest)
    text = " ".join([random.choice(story.lead), *rest])
    return Article(topic=topic, text=text, story=story)


def disaster(random: Random) -> Story:
    """Homes without power, and schools that are closed."""
    (town, other), (kind, before) = random.sample(TOWNS, 2), random.sample(DISASTERS, 2)
    (day, opens), (mayor, expert) = random.sample(DAYS, 2), random.sample(NAMES, 2)
    homes, fewer = random.sample(HUNDREDS, 2)
    return Story(
        lead=(
            f"A {kind} hit {town} on {day} and left {homes} homes without power.",
            f"On {day} {homes} homes had no power after a {kind} in {town}.",
        ),
        needed=(
            (
                f"Mayor {mayor} closed all schools until {opens}.",
                f"All schools stay closed until {opens}, said mayor {mayor}.",
            ),
            ("Crews worked all night.", "Nobody was hurt."),
        ),
        others=(
            f"In {other} it was {fewer} homes.",
            f"It was worse than the {before}.",
            f"Professor {expert} had warned of it.",
        ),
        highlights=(
            (
                f"The {kind} leaves {homes} homes in {town} dark.",
                f"In {town} {homes} homes are dark after a {kind}.",
                f"In {town} a {kind} leaves {homes} homes dark.",
            ),
            (
                f"{mayor} says pupils return on {opens}.",
                f"No lessons before {opens}, says {mayor}.",
            ),
        ),
    )


def vote(random: Random) -> Story:
    """A council that decides on a building."""
    (town, other), (project, instead) = random.sample(TOWNS, 2), random.sample(PROJECTS, 2)
    (winner, loser, third), day = random.sample(NAMES, 3), random.choice(DAYS)
    no, yes = sorted(random.sample(TENS, 2))
    cost, less = random.sample(TENS, 2)
    return Story(
        lead=(
            f"The council of {town} voted {yes} to {no} for a new {project} on {day}.",
            f"By {yes} votes to {no} {town} decided on {day} to build a {project}.",
        ),
        needed=(
            (
                f"The plan of {winner} will cost {cost} million euros.",
                f"It will cost {cost} million euros, said {winner}, who had the idea.",
            ),
            (
                f"The opponents, led by {loser}, wanted a {instead}.",
                f"Those who wanted a {instead} were led by {loser}.",
            ),
        ),
        others=(
            f"A {instead} would have cost {less} million.",
            f"In {other} a {project} was refused.",
            f"The architect {third} will begin soon.",
        ),
        highlights=(
            (
                f"{town} is to spend {cost} million on a {project}.",
                f"A {project} for {cost} million is planned in {town}.",
                f"A {project} in {town} will cost {cost} million.",
            ),
            (
                f"{winner} beats {loser} by {yes} to {no}.",
                f"{loser} fails to stop {winner}, {yes} to {no}.",
            ),
        ),
    )


def match(random: Random) -> Story:
    """A match, told from the side of either team."""
    (first, second, third, fourth) = random.sample(TOWNS, 4)
    (scorer, sent_off, coach), days = random.sample(NAMES, 3), random.sample(DAYS, 3)
    (low, high), fans = sorted(random.sample(TENS, 2)), random.choice(HUNDREDS)
    return Story(
        lead=(
            f"On {days[0]} {first} beat {second} by {high} to {low}.",
            f"On {days[0]} {second} lost by {low} to {high} against {first}.",
        ),
        needed=(
            (
                f"{scorer} scored most for the winners.",
                f"The winners had the best player in {scorer}.",
            ),
            (
                f"{first} will play {third} on {days[1]}, and {second} play {fourth}.",
                f"{second} play {fourth} on {days[2]}, and {first} play {third} on {days[1]}.",
            ),
        ),
        others=(
            f"{sent_off} was sent off.",
            f"Coach {coach} was not happy.",
            f"There were {fans} fans.",
        ),
        highlights=(
            (
                f"{scorer} lets {first} win {high} to {low} over {second}.",
                f"{second} lose as {scorer} lets {first} win {high} to {low}.",
                f"{second} lose to {first} by {low} to {high} as {scorer} shines.",
            ),
            (
                f"The winners meet {third} next, on {days[1]}.",
                f"On {days[1]} the winners meet {third}.",
            ),
        ),
    )


def theft(random: Random) -> Story:
    """A thing that was stolen and found."""
    (town, other, third), day = random.sample(TOWNS, 3), random.choice(DAYS)
    (thing, left), (job, witness) = random.sample(TREASURES, 2), random.sample(JOBS, 2)
    place, vehicle = random.choice(PLACES), random.choice(VEHICLES)
    guard, (age, years) = random.choice(NAMES), random.sample(TENS, 2)
    return Story(
        lead=(
            f"A {thing} was stolen from the {place} of {town} on {day}.",
            f"On {day} the {place} of {town} was robbed of a {thing}.",
        ),
        needed=(
            (
                f"Police found it in a {vehicle} in {other}.",
                f"It turned up in a {vehicle} in {other}.",
            ),
            (f"They arrested a {job} aged {age}.", f"A {job} aged {age} was arrested."),
        ),
        others=(
            f"A {left} from {third} was left behind.",
            f"Guard {guard}, who is {years}, heard nothing.",
            f"A {witness} had seen a light.",
        ),
        highlights=(
            (
                f"The {thing} of {town} was in a {vehicle} in {other}.",
                f"In {other} a {vehicle} held the {thing} of {town}.",
                f"In {other} the {thing} of {town} was in a {vehicle}.",
            ),
            (
                f"A {job} of {age} is in prison after the {place} robbery.",
                f"After the {place} robbery a {job} of {age} is in prison.",
            ),
        ),
    )


def rescue(random: Random) -> Story:
    """People who are saved after hours."""
    (town, other), (craft, before) = random.sample(TOWNS, 2), random.sample(CRAFT, 2)
    (captain, helper), day = random.sample(NAMES, 2), random.choice(DAYS)
    (cause, wrong), (people, hours, years) = random.sample(CAUSES, 2), random.sample(TENS, 3)
    return Story(
        lead=(
            f"On {day} {people} people were trapped in a {craft} near {town}.",
            f"On {day} a {craft} near {town} stopped with {people} people on board.",
        ),
        needed=(
            (
                f"{helper} and a team brought them out after {hours} hours.",
                f"It took {hours} hours until {helper} and a team got them out.",
            ),
            (
                f"The reason was {cause}, not {wrong}.",
                f"At first {wrong} was blamed, but it was {cause}.",
            ),
        ),
        others=(
            f"{captain} was in charge of the {craft}.",
            f"In {other} a {before} was lost {years} years ago.",
            "All of them are well.",
        ),
        highlights=(
            (
                f"{helper} saves {people} from a {craft} at {town} after {hours} hours.",
                f"After {hours} hours {helper} saves {people} from a {craft} at {town}.",
                f"After {hours} hours {people} in a {craft} at {town} are saved by {helper}.",
            ),
            (f"The cause is named as {cause}.", f"Experts say {cause} is the cause."),
        ),
    )


def firm(random: Random) -> Story:
    """A firm that hires or dismisses people."""
    (town, other), made = random.sample(TOWNS, 2), random.choice(MAKERS)
    (chief, worker), (jobs, safe) = random.sample(NAMES, 2), random.sample(HUNDREDS, 2)
    share, day = random.choice(TENS), random.choice(DAYS)
    grows = random.random() < 0.5
    will, because = ("hire", "rose") if grows else ("dismiss", "fell")
    change, mood = ("new", "good") if grows else ("lost", "bad")
    return Story(
        lead=(
            f"A {made} factory in {town} will {will} {jobs} people, it said on {day}.",
            f"On {day} the {made} factory in {town} said it will {will} {jobs} people.",
        ),
        needed=(
            (
                f"Sales {because} by {share} percent, said its head {chief}.",
                f"Its head {chief} said that sales {because} by {share} percent.",
            ),
            ("Shares did not move.", "Many had expected it."),
        ),
        others=(
            f"The {safe} people in {other} keep their work.",
            f"{worker} of the union wants to talk.",
            f"Another plant is in {other}.",
        ),
        highlights=(
            (
                f"A {mood} year for {made}, and {jobs} jobs {change} in {town}.",
                f"In {town} {jobs} jobs are {change} after a {mood} year for {made}.",
                f"In {town} a {mood} year for {made} means {jobs} jobs {change}.",
            ),
            (
                f"{chief} blames sales that changed by {share} percent.",
                f"Sales changed by {share} percent, {chief} explains.",
            ),
        ),
    )


def escape(random: Random) -> Story:
    """An animal that left its zoo."""
    (town, other), (animal, friend) = random.sample(TOWNS, 2), random.sample(ANIMALS, 2)
    (keeper, finder), (spot, first) = random.sample(NAMES, 2), random.sample(SPOTS, 2)
    job, day = random.choice(JOBS), random.choice(DAYS)
    days, kilos = random.sample(TENS, 2)
    return Story(
        lead=(
            f"A {animal} that fled from the zoo of {town} is back since {day}.",
            f"Since {day} a {animal} is back in the zoo of {town}.",
        ),
        needed=(
            (
                f"It was away for {days} days and hid in a {spot}.",
                f"For {days} days it had hidden in a {spot}.",
            ),
            (
                f"The {job} {finder} saw it there and called for help.",
                f"There {finder}, a {job}, saw it and called for help.",
            ),
        ),
        others=(
            f"Keeper {keeper} had searched a {first} in {other}.",
            f"The {friend} beside it stayed.",
            f"It lost {kilos} kilos.",
        ),
        highlights=(
            (
                f"{finder}, a {job}, finds the {animal} in a {spot}.",
                f"The {animal} is found in a {spot} by {finder}, a {job}.",
                f"The {animal} in a {spot} is found by {finder}, a {job}.",
            ),
            (
                f"It returns to {town} after {days} days of freedom.",
                f"After {days} days of freedom it returns to {town}.",
            ),
        ),
    )


def study(random: Random) -> Story:
    """What a university has found out."""
    (town, other), (author, critic) = random.sample(TOWNS, 2), random.sample(NAMES, 2)
    (habit, control), (gain, wish) = random.sample(HABITS, 2), random.sample(GAINS, 2)
    people, years, day = random.choice(HUNDREDS), random.choice(TENS), random.choice(DAYS)
    return Story(
        lead=(
            f"People who {habit} every day {gain}, the university of {town} said on {day}.",
            f"A study from {town}, out on {day}, says that people who {habit} {gain}.",
        ),
        needed=(
            (
                f"{author} observed {people} people for {years} years.",
                f"For {years} years {people} people were observed by {author}.",
            ),
            (f"Those who {control} did not.", f"It was not so for those who {control}."),
        ),
        others=(
            f"{critic} from {other} has doubts.",
            f"Whether they {wish} is not known.",
            f"A second study follows in {other}.",
        ),
        highlights=(
            (
                f"To {gain} you should {habit}, {town} finds.",
                f"You should {habit} to {gain}, {town} finds.",
                f"You should {habit}, {town} finds, to {gain}.",
            ),
            (
                f"{author} followed {people} people over {years} years.",
                f"Over {years} years {author} followed {people} people.",
            ),
        ),
    )


TOPICS: Mapping[str, Callable[[Random], Story]] = {
    "disaster": disaster,
    "vote": vote,
    "match": match,
    "theft": theft,
    "rescue": rescue,
    "firm": firm,
    "escape": escape,
    "study": study,
}
