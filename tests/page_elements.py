"""The elements of an HTML page, for the tests of pages."""

from html.parser import HTMLParser


class Elements(HTMLParser):
    """Every element of a document with its attributes, the texts, and the text of each script by its id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.script: str | None = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.script = dict(attrs).get("id") or "" if tag == "script" else None

    def handle_data(self, data):
        self.texts.append(data)
        if self.script is not None:
            self.scripts[self.script] = self.scripts.get(self.script, "") + data
