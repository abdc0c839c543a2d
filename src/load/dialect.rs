//! What servers of OpenAI's interface do differently, as far as a load generator notices.

use super::plan::Api;

/// The server behind the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Vllm,
    Sglang,
    /// Hugging Face's text-generation-inference.
    Tgi,
    LlamaCpp,
    /// Nothing but what OpenAI documents.
    OpenAi,
}

impl Dialect {
    pub const ALL: [Self; 5] = [Self::Vllm, Self::Sglang, Self::Tgi, Self::LlamaCpp, Self::OpenAi];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Tgi => "tgi",
            Self::LlamaCpp => "llama.cpp",
            Self::OpenAi => "openai",
        }
    }

    /// The dialect of this name; `None` where there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Whether a prompt may be token ids.
    #[must_use]
    pub fn takes_tokens(self, api: Api) -> bool {
        api == Api::Completions && self != Self::Tgi
    }

    /// Whether `ignore_eos` is known, and a reply can therefore be made to have an exact number of tokens.
    #[must_use]
    pub fn ignores_eos(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::LlamaCpp)
    }

    /// The field that bounds the output.
    pub(super) fn length_field(self, api: Api) -> &'static str {
        if self == Self::OpenAi && api == Api::Chat { "max_completion_tokens" } else { "max_tokens" }
    }

    /// Whether token counts come with every reply that asks for them, so that a reply without is not whole.
    pub(super) fn always_counts(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }

    /// Whether every stream that ends in order ends with `[DONE]`.
    pub(super) fn always_says_done(self) -> bool {
        self != Self::Tgi
    }

    /// Whether the finish reason comes in a chunk of its own behind the last token.
    pub(super) fn finishes_apart(self) -> bool {
        matches!(self, Self::LlamaCpp | Self::OpenAi | Self::Sglang)
    }
}
