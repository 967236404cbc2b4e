"""Slot values of the generated tasks, and the backend state that they refer to.

A value belongs to the partition that its own checksum names, so partitions share none.
"""

import numpy as np

from rc_lib.seeding import stable_id

# Partition of a value by its checksum modulo 10.
PARTITIONS = {"test": (0, 1, 2), "train": (3, 4, 5, 6), "pretrain": (7, 8, 9)}
# fmt: off
STEMS = (
    "Budget Report Memo Draft Invoice Summary Plan Agenda Notes Survey Contract Review Ledger "
    "Proposal Schedule Roster Outline Receipt Profile Journal Index Catalog Manual Brief "
    "Audit Forecast Dataset Sketch Letter Poster Recipe Record"
).split()
MARKS = (
    "Final Old New March April June July August Spring Summer Autumn Winter North South East "
    "West Red Blue Green Gold Silver Alpha Beta Gamma Delta Omega Urban Rural Daily Weekly"
).split()
ENDINGS = ("txt", "md", "csv", "pdf", "log")
FIRST_NAMES = (
    "Alice Bruno Carla David Elena Felix Grace Hugo Irene Jonas Karin Lucas Maria Nadia Oscar "
    "Paula Quinn Rosa Simon Tara"
).split()
LAST_NAMES = (
    "Moore Stone Rivera Baker Lopez Novak Weber Rossi Tanaka Silva Berg Young Keller Marsh "
    "Olsen Price Quill Reed Sato Turner"
).split()
CITY_A = (
    "Oak Maple Cedar Silver Stone River Lake Spring Summer North South East West Clear Bright "
    "Green Red White Gold Fair"
).split()
CITY_B = "field ton ford view dale haven port wood bridge land mouth hill".split()
SYLLABLES = "AL BE CO DA EL FO GA HI IN JO KA LU MO NE OR PA QU RI SO TU".split()
TEXT_WORDS = (
    "meeting moved train late server down dinner ready package sent office closed printer "
    "broken door open coffee hot garden wet project done team happy lunch free price high "
    "sale over"
).split()
SUBJECTS = tuple(TEXT_WORDS[::2])
STATES = tuple(TEXT_WORDS[1::2])
WHEN = "today tomorrow tonight again soon later now already".split()
CAR_PARTS = ("fuel", "battery", "doors", "climate", "headlights", "engine")
# fmt: on


def partition_of(value: str) -> str:
    """Return the partition that owns a slot value.

    >>> {partition_of(str(n)) for n in range(30)} == {"pretrain", "train", "test"}
    True
    """
    digit = stable_id(value) % 10
    return next(name for name, digits in PARTITIONS.items() if digit in digits)


class World:
    """Draws slot values of one partition and builds the backend state that they refer to."""

    def __init__(self, draw: np.random.Generator, partition: str):
        self.draw = draw
        self.partition = partition
        self.used: set[str] = set()
        self.tickets_made = 0
        contents: dict = {}
        self.files = contents
        self.config: dict[str, dict] = {
            "GorillaFileSystem": {
                "root": {"workspace": {"type": "directory", "contents": contents}}
            },
            "MathAPI": {},
            "MessageAPI": {
                "random_seed": int(draw.integers(10**6)),
                "user_count": int(draw.integers(100, 900)),
                "user_map": {"Me Myself": "USR001"},
                "inbox": [],
                "message_count": 0,
                "current_user": "USR001",
            },
            "TicketAPI": {
                "ticket_queue": [],
                "ticket_counter": int(self.number(1000, 9999)),
                "current_user": "operator",
            },
            "TradingBot": {
                "orders": {},
                "account_info": {"account_id": 1, "balance": 10000000.0, "binding_card": 1},
                "authenticated": True,
                "market_status": "Open",
                "order_counter": int(self.number(1000, 9999)),
                "stocks": {},
                "watch_list": [],
                "transaction_history": [],
            },
            "TwitterAPI": {
                "username": "operator",
                "password": "secret",
                "authenticated": True,
                "tweets": {},
                "comments": {},
                "retweets": {},
                "following_list": [],
                "tweet_counter": int(self.number(1000, 9999)),
            },
            "VehicleControlAPI": {
                "fuelLevel": 4.0,
                "doorStatus": {
                    d: "locked" for d in ("driver", "passenger", "rear_left", "rear_right")
                },
            },
        }

    # -- values -----------------------------------------------------------------------------

    def fresh(self, make) -> str:
        """Draw until a value of this partition comes that the task does not hold yet."""
        while True:
            value = make()
            if partition_of(value) == self.partition and value not in self.used:
                self.used.add(value)
                return value

    def pick(self, words) -> str:
        return str(words[self.draw.integers(len(words))])

    def number(self, low: int, high: int) -> str:
        return self.fresh(lambda: str(self.draw.integers(low, high + 1)))

    def file_name(self) -> str:
        return self.fresh(lambda: f"{self.pick(STEMS)}{self.pick(MARKS)}.{self.pick(ENDINGS)}")

    def text(self) -> str:
        return self.fresh(lambda: f"{self.pick(SUBJECTS)} {self.pick(STATES)} {self.pick(WHEN)}")

    def person_name(self) -> str:
        return self.fresh(lambda: f"{self.pick(FIRST_NAMES)} {self.pick(LAST_NAMES)}")

    def handle_name(self) -> str:
        return self.fresh(lambda: f"{self.pick(FIRST_NAMES)}{self.pick(LAST_NAMES)}")

    def add_file(self, content: str | None = None) -> str:
        name = self.file_name()
        lines = [f"{self.pick(SUBJECTS)} {self.pick(STATES)}" for _ in range(2)]
        text = content or "\n".join(lines)
        self.files[name] = {"type": "file", "content": text}
        return name

    def add_user(self) -> tuple[str, str]:
        name, user_id = self.person_name(), f"USR{self.number(1000, 9999)}"
        self.config["MessageAPI"]["user_map"][name] = user_id
        return name, user_id

    def add_stock(self) -> tuple[str, float]:
        symbol = self.fresh(lambda: self.pick(SYLLABLES) + self.pick(SYLLABLES))
        price = float(self.number(20, 999)) + 0.5
        self.config["TradingBot"]["stocks"][symbol] = {"price": price, "percent_change": 0.1}
        return symbol, price

    # -- slots ------------------------------------------------------------------------------

    def slots(self, names: list[str]) -> dict[str, object]:
        """Draw a value for each slot name of an intent, in order, and the values derived."""
        values: dict[str, object] = {}
        for name in names:
            if name not in values:
                values |= getattr(self, f"slot_{name.rstrip('23')}")(name)
        if {"int", "int2"} <= set(values):
            values["sum"] = values["int"] + values["int2"]  # type: ignore[operator]
        return values

    def slot_file(self, name):
        return {name: self.add_file()}

    def slot_new_file(self, name):
        return {name: self.file_name()}

    def slot_dir(self, name):
        value = self.fresh(lambda: f"{self.pick(MARKS)}{self.pick(STEMS)}")
        self.files[value] = {"type": "directory", "contents": {}}
        return {name: value}

    def slot_new_dir(self, name):
        return {name: self.fresh(lambda: f"{self.pick(MARKS)}{self.pick(STEMS)}")}

    def slot_text(self, name):
        return {name: self.text()}

    def slot_phrase(self, name):
        return {name: self.fresh(lambda: f"{self.pick(SUBJECTS)} {self.pick(STATES)}")}

    def slot_int(self, name):
        return {name: int(self.number(100, 9999))}

    def slot_small(self, name):
        return {name: int(self.number(2, 45))}

    def slot_fan(self, name):
        return {name: 10 * int(self.draw.integers(1, 10))}

    def slot_level(self, name):
        return {name: int(self.draw.integers(1, 6))}

    def slot_price(self, name):
        return {name: float(self.number(20, 999)) + 0.5}

    def slot_person(self, name):
        person, user_id = self.add_user()
        return {name: person, "person_id": user_id}

    def slot_user_id(self, name):
        return {name: self.add_user()[1]}

    def slot_new_person(self, name):
        return {name: self.person_name()}

    def slot_receiver_id(self, name):
        user_id = self.add_user()[1]
        self.config["MessageAPI"]["inbox"].append({user_id: self.text()})
        self.config["MessageAPI"]["message_count"] += 1
        return {name: user_id}

    def slot_title(self, name):
        return {name: self.fresh(lambda: f"{self.pick(STEMS)} {self.pick(STATES)}")}

    def slot_ticket(self, name):
        ticket = int(self.number(1000, 9999))
        self.config["TicketAPI"]["ticket_queue"].append(
            {"id": ticket, "title": "request", "description": "", "status": "Open"}
            | {"priority": 3, "created_by": "operator"}
        )
        return {name: ticket}

    def slot_next_ticket(self, name):
        return {name: self.config["TicketAPI"]["ticket_counter"] + self.tickets_made}

    def slot_stock(self, name):
        symbol, price = self.add_stock()
        return {name: symbol, "stock_price": price}

    def slot_watched(self, name):
        symbol, _ = self.add_stock()
        self.config["TradingBot"]["watch_list"].append(symbol)
        return {name: symbol}

    def slot_order(self, name):
        order = int(self.number(1000, 9999))
        self.config["TradingBot"]["orders"][order] = {
            "id": order, "order_type": "Buy", "symbol": "FUND", "price": 10.5, "amount": 5,
            "status": "Pending",
        }  # fmt: skip
        return {name: order}

    def slot_tag(self, name):
        return {name: self.fresh(lambda: f"#{self.pick(MARKS)}{self.pick(STEMS)}")}

    def slot_tweet(self, name):
        tweet = int(self.number(1000, 9999))
        self.config["TwitterAPI"]["tweets"][tweet] = {
            "id": tweet, "username": "someone", "content": "hello", "tags": [], "mentions": [],
        }  # fmt: skip
        return {name: tweet}

    def slot_handle(self, name):
        return {name: self.handle_name()}

    def slot_followed(self, name):
        value = self.handle_name()
        self.config["TwitterAPI"]["following_list"].append(value)
        return {name: value}

    def slot_city(self, name):
        return {name: self.fresh(lambda: f"{self.pick(CITY_A)} {self.pick(CITY_B)}")}

    def slot_part(self, name):
        return {name: self.pick(CAR_PARTS)}
