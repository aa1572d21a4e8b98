"""Stand in for the program `vllm`: `vllm serve MODEL --port N` answers as a small server does.

`vllm model FOLDER` writes the tokenizer of the model that it pretends to serve.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, os.environ["REPOSITORY"])

from tests.adapters.engines.openai import echo

ANSWER = ("Paris", " is", " the", " capital", ".")


def write_model(folder: Path) -> None:
    """Write a tokenizer that has the words of the answer, from token 10 on."""
    from tokenizers import Tokenizer, decoders, models

    words = {f"<{number}>": number for number in range(10)}
    words |= {word: number for number, word in enumerate(ANSWER, 10)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    tokenizer.decoder = decoders.Fuse()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


async def serve(port: int) -> None:
    pieces = echo.piece
    echo.piece = lambda text, ids, finish, *, chat, field="content": pieces(
        ANSWER[int(text.removeprefix(" word"))], ids, finish, chat=chat, field=field
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: echo.Echo(len(ANSWER), 0.05, 0.02), "127.0.0.1", port, backlog=512
    )
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "model":
        write_model(Path(sys.argv[2]))
    else:
        asyncio.run(serve(int(sys.argv[sys.argv.index("--port") + 1])))
