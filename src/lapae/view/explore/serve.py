"""Start the explorer of a model and open its page in the browser."""

from __future__ import annotations

import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lapae.model import Model
from lapae.view.explore.explorer import Explorer, Options
from lapae.view.explore.opening import opening
from lapae.view.explore.routes import Routes
from lapae.view.explore.server import Server, is_loopback
from lapae.view.named_splits import NamedSplits


def prepare(
    model: Model,
    splits: NamedSplits,
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    options: Options | None = None,
    no_data: str | None = None,
) -> Server:
    """Return a listening server with everything computed that pages need; `no_data` says why there are no data."""
    if not is_loopback(host):
        print("lapae: warning: whoever has the address below can see these data", file=sys.stderr)
    explorer = Explorer(model, splits, options)
    return Server(Routes(explorer, opening(explorer, name, no_data)), host, port)


def serve(server: Server, *, open: bool = True) -> None:
    """Print the address, open the page, and answer until Ctrl-C."""
    print(f"{server.routes.opening['name']} at {server.url} (Ctrl-C ends)", flush=True)
    with ExitStack() as stack:
        if open:  # beside the server: some browsers return only when their page is there
            page = stack.enter_context(leading_to(server.url))
            threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:  # how it ends
            print("\nended", file=sys.stderr)
        finally:
            server.server_close()
            server.routes.close()


@contextmanager
def leading_to(url: str) -> Iterator[str]:
    """Yield the address of a page that redirects to `url`: a file that only this user can read.

    All users of a machine can see what programs are started with, and the address of the explorer has its token in it.
    """
    with tempfile.TemporaryDirectory(prefix="lapae-") as folder:
        page = Path(folder, "explore.html")
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">explorer</a>'
        )
        yield page.as_uri()
