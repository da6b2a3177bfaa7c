"""transformers' models with rocattn's attention beside sdpa: generate, a training step with gradients, refusals."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
transformers = pytest.importorskip("transformers", reason="transformers is not installed", exc_type=ImportError)

from rocattn.errors import ConfigError  # noqa: E402 - only where torch is there
from rocattn.torch import register_transformers  # noqa: E402
from rocattn.torch.models import _attend  # noqa: E402

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
MODELS = {
    "dense": ("Llama", {}),
    "grouped": ("Qwen2", {"num_key_value_heads": 2}),
    "sliding window": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 5}),
    "soft caps and windows": ("Gemma2", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}),
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # transformers' own


def pair(name, **more):
    """The same random model twice: with PyTorch's attention (plain where that has no soft cap), and with ours."""
    family, options = MODELS[name]
    options = getattr(transformers, f"{family}Config")(**SIZES, **options, **more)
    kind = getattr(transformers, f"{family}ForCausalLM")
    register_transformers()
    torch.manual_seed(0)
    theirs = kind._from_config(copy.deepcopy(options), attn_implementation="eager" if family == "Gemma2" else "sdpa")
    ours = kind._from_config(copy.deepcopy(options), attn_implementation="rocattn")
    ours.load_state_dict(theirs.state_dict())
    assert ours.config._attn_implementation == "rocattn"
    return theirs, ours


def tokens(*, padded):
    """Three prompts, with padding before two of them or none."""
    ids = torch.randint(2, 97, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :4] = mask[2, :1] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_has_pytorchs_loss_and_gradients(name, padded):
    """Of every parameter."""
    batch = tokens(padded=padded)
    mask = batch["attention_mask"]  # a padding row sees no key, and "eager" alone lets it see all: no loss on it
    labels = batch["input_ids"].masked_fill((mask & mask.roll(1, 1)) == 0, -100)
    found = []
    for model in pair(name):
        model.train()
        loss = model(**batch, labels=labels).loss
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert len(found[0]) > 10
    for want, have in zip(*found, strict=True):
        torch.testing.assert_close(have, want, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_generated_tokens_are_those_of_pytorchs_attention(name, padded):
    """With the growing cache of transformers; also the logits of each step."""
    runs = [
        model.eval().generate(
            **tokens(padded=padded), max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
        for model in pair(name)
    ]
    for want, have in zip(runs[0].logits, runs[1].logits, strict=True):
        torch.testing.assert_close(have, want, atol=2e-5, rtol=2e-4)
    assert torch.equal(runs[0].sequences, runs[1].sequences)


def test_what_is_not_computed_is_refused():
    """Weights that are to be returned."""
    query = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ConfigError, match="output_attentions are not supported"):
        _attend(torch.nn.Module(), query, query, query, None, output_attentions=True)


def test_dropout_is_that_of_training_alone():
    """By PyTorch's generator, as its own attention does it."""
    _, ours = pair("dense", attention_dropout=0.5)

    def logits(seed):
        torch.manual_seed(seed)
        return ours(**tokens(padded=False)).logits

    ours.train()
    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))
    ours.eval()
    assert torch.equal(logits(1), logits(2))
