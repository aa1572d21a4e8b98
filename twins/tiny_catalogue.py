"""Draw products and describe them: what a tiny Qwen3-VL is trained on.

A product's picture alone shows its group (a shape) and its leaf of the tree (how the shape is
painted); its texts name the brand, and say whether it was used before.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw

SIZE = 48
"""Pixels of a picture in height and width."""
SCALE = 4
"""Pictures are drawn so many times larger: edges are smooth then."""
SEPARATOR = " > "

DEPARTMENTS = {
    "Home & Garden": ("Clocks", "Lamps", "Rugs"),
    "Toys & Games": ("Blocks", "Kites", "Puzzles"),
    "Apparel & Accessories": ("Bags", "Hats", "Ties"),
    "Sporting Goods": ("Boards", "Skates", "Tents"),
}
PAINTS = ("Plain", "Outlined", "Striped")
"""The leaves of each group."""

BRANDS = (
    *("Alveston", "Brontide", "Calyxa", "Dovemark", "Elmhurst", "Fernwick", "Glimmo", "Harrowby"),
    *("Istria", "Jorvik", "Kestrane", "Lumora", "Maplin", "Norvik", "Ostrelle", "Pemberly"),
)
NOUNS = ("article", "item", "model", "piece")
NEW = ("Brand new, in its box.", "New with tags.", "Sold new by the maker.", "Never used.")
USED = ("Pre-owned, a few scratches.", "Second hand, works well.", "Used for one season.")
WITHOUT_DESCRIPTION = 0.07
"""Share of products, as in Shopify's catalogue; these are new."""
IN_HTML = 0.2
"""Share of descriptions in source code."""


def _star(points: int, inner: float) -> list[tuple[float, float]]:
    """Return the corners of a star; with `inner` 1 those of a polygon of twice as many."""
    return [
        (r * math.sin(math.pi * k / points), -r * math.cos(math.pi * k / points))
        for k in range(2 * points)
        for r in [1.0 if k % 2 == 0 else inner]
    ]


SHAPES = {
    "Clocks": _star(16, 1.0),
    "Lamps": [(-0.5, -0.9), (0.5, -0.9), (1.0, 0.9), (-1.0, 0.9)],
    "Rugs": [(-1.0, -0.5), (1.0, -0.5), (1.0, 0.5), (-1.0, 0.5)],
    "Blocks": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "Kites": [(0, -1.0), (0.7, 0), (0, 1.0), (-0.7, 0)],
    "Puzzles": _star(5, 0.42),
    "Bags": [(-1.0, -0.6), (1.0, -0.6), (0.5, 0.9), (-0.5, 0.9)],
    "Hats": [
        (-0.4, -0.8),
        (0.4, -0.8),
        (0.4, 0.2),
        (1, 0.2),
        (1, 0.8),
        (-1, 0.8),
        (-1, 0.2),
        (-0.4, 0.2),
    ],
    "Ties": [(-0.9, -0.9), (0.9, -0.9), (-0.9, 0.9), (0.9, 0.9)],
    "Boards": [(-0.4, -1.0), (0.4, -1.0), (0.4, 1.0), (-0.4, 1.0)],
    "Skates": [(-0.9, -0.9), (-0.2, -0.9), (-0.2, 0.2), (0.9, 0.2), (0.9, 0.9), (-0.9, 0.9)],
    "Tents": [(0, -0.95), (1.0, 0.85), (-1.0, 0.85)],
}
"""Corners of each group's shape, from -1 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A product as a row of the catalogue has it.

    Attributes:
        picture: A PNG file.
        choices: The possible categories.
    """

    title: str
    description: str | None
    picture: bytes
    choices: tuple[str, ...]
    category: str
    brand: str
    is_secondhand: bool

    @property
    def answer(self) -> str:
        """The right answer, as JSON."""
        fields = {
            "category": self.category,
            "brand": self.brand,
            "is_secondhand": self.is_secondhand,
        }
        return json.dumps(fields)


def leaves() -> list[str]:
    """Return all categories."""
    return [
        SEPARATOR.join((department, group, f"{paint} {group}"))
        for department, groups in DEPARTMENTS.items()
        for group in groups
        for paint in PAINTS
    ]


def draw(random: Random) -> Product:
    """Draw a product: any of the listed categories is as likely as any other."""
    choices = _choices(random)
    category = random.choice(choices)
    brand = random.choice(BRANDS)
    used = random.random() < 0.4
    description: str | None = random.choice(USED if used else NEW)
    if random.random() < IN_HTML:
        description = f"<p>{description}</p>"
    if not used and random.random() < WITHOUT_DESCRIPTION / 0.6:
        description = None
    return Product(
        title=f"{brand} {random.choice(NOUNS)} {random.randrange(100, 1000)}",
        description=description,
        picture=_picture(random, category),
        choices=tuple(choices),
        category=category,
        brand=brand,
        is_secondhand=used,
    )


def _choices(random: Random) -> list[str]:
    """Return five categories: two of a group, one more of its department, two of others."""
    first = random.choice(leaves())
    department, group, _ = first.split(SEPARATOR)
    others = [leaf for leaf in leaves() if leaf != first]
    siblings = [leaf for leaf in others if f"{SEPARATOR}{group}{SEPARATOR}" in leaf]
    cousins = [leaf for leaf in others if leaf.startswith(department) and leaf not in siblings]
    rest = [leaf for leaf in others if not leaf.startswith(department)]
    drawn = [first, random.choice(siblings), random.choice(cousins), *random.sample(rest, 2)]
    random.shuffle(drawn)
    return drawn


def _picture(random: Random, category: str) -> bytes:
    """Paint the shape of a category's group in a bright colour before a dark ground."""
    _, group, leaf = category.split(SEPARATOR)
    colour = tuple(random.randrange(130, 256) for _ in range(3))
    ground = tuple(random.randrange(0, 60) for _ in range(3))
    radius = SCALE * random.uniform(17, 21)
    x, y = (SCALE * (SIZE / 2 + random.uniform(-2, 2)) for _ in range(2))
    corners = [(x + radius * dx, y + radius * dy) for dx, dy in SHAPES[group]]
    large = Image.new("RGB", (SCALE * SIZE, SCALE * SIZE), ground)
    mask = Image.new("L", large.size)
    ImageDraw.Draw(mask).polygon(corners, fill=255)
    large.paste(colour, mask=mask)
    paint = ImageDraw.Draw(large)
    if leaf.startswith("Outlined"):
        inner = [(x + 0.6 * (a - x), y + 0.6 * (b - y)) for a, b in corners]
        paint.polygon(inner, fill=ground)
    if leaf.startswith("Striped"):
        for top in range(0, large.height, 8 * SCALE):
            paint.rectangle((0, top, large.width, top + 4 * SCALE - 1), fill=ground)
    file = io.BytesIO()
    large.resize((SIZE, SIZE), Image.Resampling.BOX).save(file, format="PNG")
    return file.getvalue()
