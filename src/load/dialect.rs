//! What servers of OpenAI's interface do differently.

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
