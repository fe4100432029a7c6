"""A page inside a notebook."""

import html

HEIGHT = 640


def frame_page(document: str, *, height: int = HEIGHT) -> str:
    """Put a self-contained page into a frame, for the HTML representation of an object in a notebook.

    The frame runs the page's scripts apart from the notebook, which they cannot reach, and loads nothing: the page is
    in its attribute.

    Args:
        document: what `render_page` or `render_document` returned.
        height: of the frame, in pixels; the page scrolls inside.

    Returns:
        HTML: one element.

    Example:
        >>> frame_page("<!doctype html><title>a</title>", height=300).partition(" srcdoc=")[0]
        '<iframe style="width:100%;height:300px;border:0" sandbox="allow-scripts allow-downloads"'
    """
    style = f'style="width:100%;height:{height}px;border:0"'
    return f'<iframe {style} sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(document)}"></iframe>'
