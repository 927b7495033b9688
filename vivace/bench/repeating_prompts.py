"""Three chats whose natural answers repeat long parts of what they were given: what drafts from
n-grams are for."""

from __future__ import annotations

from vivace.bench.tokenizer import TokenCodec

CODE = """import csv
from dataclasses import dataclass


@dataclass
class Order:
    number: int
    customer: str
    product: str
    pieces: int
    price: float

    def total(self) -> float:
        return self.pieces * self.price


class OrderBook:
    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.by_customer: dict[str, list[Order]] = {}

    def add(self, order: Order) -> None:
        self.orders.append(order)
        self.by_customer.setdefault(order.customer, []).append(order)

    def total(self) -> float:
        return sum(order.total() for order in self.orders)

    def customer_total(self, customer: str) -> float:
        return sum(order.total() for order in self.by_customer.get(customer, []))


def load_orders(path: str) -> OrderBook:
    book = OrderBook()
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            order = Order(
                number=int(row["number"]),
                customer=row["customer"],
                product=row["product"],
                pieces=int(row["pieces"]),
                price=float(row["price"]),
            )
            book.add(order)
    return book
"""
RECORDS = """\
Order 1041: Anna Berger, Linz, Austria, 12 boxes of green tea, paid, sent on 3 March 2025.
Order 1042: Tomas Novak, Brno, Czech Republic, 4 boxes of black tea, paid, sent on 4 March 2025.
Order 1043: Maria Rossi, Bologna, Italy, 30 boxes of green tea, not paid, waiting for the bank.
Order 1044: Jan de Vries, Utrecht, Netherlands, 8 boxes of white tea, paid, sent on 5 March 2025.
Order 1045: Sophie Martin, Lyon, France, 16 boxes of herbal tea, paid, sent on 5 March 2025.
Order 1046: Erik Lindqvist, Uppsala, Sweden, 2 boxes of green tea, not paid, waiting for an answer.
Order 1047: Marta Kowalska, Gdansk, Poland, 24 boxes of black tea, paid, sent on 7 March 2025.
Order 1048: Peter Horvath, Debrecen, Hungary, 6 boxes of white tea, paid, sent on 7 March 2025.
"""
ARTICLE = """\
The lighthouse on the northern cape was built in 1871, after three ships had been lost on \
the rocks in a single winter. Its lamp burned whale oil at first, and later kerosene, and a keeper \
had to climb the two hundred and twelve steps every four hours to wind the clockwork that turned \
the lens. The families of the keepers lived in a stone house at the foot of the tower, grew \
potatoes in a walled garden, and were often cut off from the village for weeks when the storms of \
autumn closed the road along the cliffs. In 1934 a cable brought electricity to the cape, and the \
clockwork was replaced by a motor that is still in use today. The last keeper, Ingrid Dahl, left \
the tower in 1986, when the light was made automatic, but she came back every summer to show \
visitors the lens, which is two meters high and throws its beam forty kilometers out to sea. Since \
2004 the tower has been a museum, and its garden is tended by the school of the village. On the \
first Sunday of June the lamp is lit with oil, as it was in the beginning, and fishermen from both \
sides of the bay come to see it."""

REPEATING_CHATS: dict[str, list[dict[str, str]]] = {
    "code edit": [
        {
            "role": "user",
            "content": "Rename the class OrderBook to OrderList in this Python file. Change "
            f"nothing else. Reply with the complete file.\n\n```python\n{CODE}```",
        }
    ],
    "extraction": [
        {
            "role": "user",
            "content": f"Here is a list of orders:\n\n{RECORDS}\nCopy every order exactly as it is "
            "written above, one line for each order, in the same order.",
        }
    ],
    "summary with quotes": [
        {
            "role": "user",
            "content": f"Read this text:\n\n{ARTICLE}\n\nWhat does the text say about the "
            "lighthouse? Quote the sentences of the text word for word.",
        }
    ],
}
"""name -> messages"""


def repeating_prompts(codec: TokenCodec) -> list[list[int]]:
    """Their tokens, in the model's chat template."""
    return codec.encode([codec.chat(messages) for messages in REPEATING_CHATS.values()])
