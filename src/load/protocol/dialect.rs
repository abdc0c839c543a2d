//! Differences between servers of OpenAI's interface that a load generator notices.

use crate::load::RequestApi;

/// The server behind the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Vllm,
    Sglang,
    /// Hugging Face's text-generation-inference.
    Tgi,
    LlamaCpp,
    /// Only the behaviour that OpenAI documents.
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

    /// Returns the dialect of this name, or `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Returns whether a prompt may be token ids.
    ///
    /// vLLM: `prompt` in `vllm/entrypoints/openai/protocol.py` is a text, texts, ids or lists of ids. SGLang: the
    /// same in `CompletionRequest` of `python/sglang/srt/entrypoints/openai/protocol.py`. llama.cpp:
    /// `tokenize_input_prompts` in `tools/server/server-common.cpp`. OpenAI: the reference of `/v1/completions`. TGI
    /// takes only texts (`Prompt` in `router/src/lib.rs`). No chat endpoint takes them.
    #[must_use]
    pub fn takes_tokens(self, api: RequestApi) -> bool {
        api == RequestApi::Completions && self != Self::Tgi
    }

    /// Returns whether the server supports `ignore_eos`. Replies can then be forced to an exact number of tokens.
    ///
    /// vLLM, SGLang: `ignore_eos` in the files that `takes_tokens` names. llama.cpp: `ignore_eos` of
    /// `tools/server/README.md`; its OpenAI routes pass it on. TGI has none over this interface: only its own benchmark
    /// sets `ignore_eos_token`. OpenAI has none.
    #[must_use]
    pub fn ignores_eos(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::LlamaCpp)
    }

    /// Returns the field that bounds the output. OpenAI's reference of the chat calls `max_tokens` deprecated, and its
    /// reasoning models reject it. The other servers support `max_tokens` in every release.
    pub(super) fn length_field(self, api: RequestApi) -> &'static str {
        if self == Self::OpenAi && api == RequestApi::Chat { "max_completion_tokens" } else { "max_tokens" }
    }

    /// Returns whether every reply has token counts if the request asks for them. A reply without counts is then
    /// incomplete.
    ///
    /// vLLM and SGLang send them as the last event. TGI sends those of a completion with its last token, and those of a
    /// chat only in later releases (`router/src/server.rs`, `router/src/chat.rs`). llama.cpp sends them with the last
    /// chunk of a completion, and after that of a chat only in newer releases (`tools/server/server-task.cpp`). Servers
    /// that imitate OpenAI's may ignore `stream_options`.
    pub(super) fn always_counts(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }

    /// Returns whether every stream that ends properly ends with `[DONE]`. Streams of vLLM (all `serving*.py`, also
    /// after an error), SGLang (`serving_chat.py`, `serving_completions.py`), llama.cpp (its OpenAI routes in
    /// `tools/server/server.cpp`) and OpenAI do. TGI's do from 2.2 on.
    pub(super) fn always_sends_done(self) -> bool {
        self != Self::Tgi
    }

    /// Returns whether a completion ends with a chunk that has an empty text and the finish reason. Completions of
    /// llama.cpp (`to_json_oaicompat` in `tools/server/server-task.cpp`) and OpenAI do. In vLLM, SGLang and TGI the
    /// last chunk is the last token, even without a text.
    pub(super) fn sends_separate_finish(self) -> bool {
        matches!(self, Self::LlamaCpp | Self::OpenAi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dialect_is_found_by_its_name() {
        for dialect in Dialect::ALL {
            assert_eq!(Dialect::from_name(dialect.name()), Some(dialect));
            assert!(!dialect.takes_tokens(RequestApi::Chat));
        }
        assert_eq!(Dialect::from_name("VLLM"), None);
    }
}
