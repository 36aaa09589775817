"""A tokenizer with one token per character, and encoding that refuses what a tokenizer does not know."""

from __future__ import annotations

from typing import Any

from kl_companion.llm.optional import llm_extra

SPECIALS = ("<pad>", "<bos>", "<eos>")


def character_tokenizer(alphabet: str) -> Any:
    """A Hugging Face tokenizer with one token per character.

    `<pad>`, `<bos>` and `<eos>` are the tokens 0, 1 and 2; the characters follow in the order given. There is
    no token for the unknown: a character outside the alphabet is an error. The text `"<eos>"` is five
    characters and not the special token. It works with `save_pretrained` and `AutoTokenizer`.

    Returns:
        A `transformers.PreTrainedTokenizerFast`.

    Raises:
        ValueError: the alphabet is empty or holds a character twice.
        ImportError: the extra `llm` is not installed.
    """
    if not alphabet:
        raise ValueError("alphabet is empty, expected the characters of the language")
    twice = next((c for i, c in enumerate(alphabet) if c in alphabet[:i]), None)
    if twice is not None:
        raise ValueError(f"alphabet holds {twice!r} twice: one token per character needs distinct characters")
    parts, transformers = llm_extra("tokenizers"), llm_extra("transformers")
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = parts.Tokenizer(parts.models.WordLevel(vocabulary))
    # (?m) lets the dot match a line break too
    every_character = parts.Regex("(?m).")
    tokenizer.pre_tokenizer = parts.pre_tokenizers.Split(every_character, "isolated")
    tokenizer.decoder = parts.decoders.Fuse()
    pad, bos, eos = SPECIALS
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, as it stands: no special tokens are added.

    Raises:
        ValueError: `texts` is one string; or a text holds a character that the tokenizer does not know (the
            message names it).
    """
    if isinstance(texts, str):
        raise ValueError(f"texts is the string {texts[:40]!r}, expected a list of strings")
    texts = list(texts)
    ids = _ids(tokenizer, texts) if texts else []
    unknown = tokenizer.unk_token_id
    if ids is None:
        raise _unknown_character(tokenizer, texts)
    if unknown is not None and any(unknown in row for row in ids):
        # some tokenizers name another special token as the unknown one: a text may hold it on purpose
        odd = [text for text, row in zip(texts, ids, strict=True) if unknown in row]
        if any(tokenizer.unk_token not in text for text in odd):
            raise _unknown_character(tokenizer, odd)
    return ids


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]] | None:
    """Token ids; None if the tokenizer stopped at a character for which it has no token."""
    try:
        return tokenizer(texts, add_special_tokens=False)["input_ids"]
    except Exception as error:  # the library raises the bare Exception here
        if "unk" not in str(error).lower():
            raise
        return None


def _unknown_character(tokenizer: Any, texts: list[str]) -> ValueError:
    for text in texts:
        for character in text:
            ids = _ids(tokenizer, [character])
            if ids is None or (tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids[0]):
                return ValueError(
                    f"the tokenizer does not know the character {character!r} in {text[:40]!r}; "
                    f"expected characters among its {len(tokenizer)} tokens"
                )
    return ValueError(f"the tokenizer does not know a part of {texts[0][:40]!r}")
