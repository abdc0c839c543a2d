//! Conversion of chat messages to a prompt, and of images to tokens.
//!
//! The template is that of Qwen2. Each message becomes `<|im_start|>ROLE\n`, its content and `<|im_end|>\n`. The prompt
//! ends with `<|im_start|>assistant\n`. This adds 5 tokens to each message and 3 at the end. It adds no system message.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use super::request::{ErrorResponse, ServedLimits, tokenize};
use crate::stats::Fnv1a;

/// The side length in pixels of the part of an image that becomes one token: a patch of 14 pixels, merged two by two.
/// Source: Qwen2-VL's `image_processing_qwen2_vl.py` in `transformers`.
const PATCH: u32 = 28;

/// The largest number of tokens of one image: Qwen2-VL's `max_pixels` corresponds to 16,384 areas of 28 × 28 pixels.
const MAX_PATCHES: u64 = 16_384;

/// Special tokens of the template. Token `n` has the id `vocabulary size - 1 - n`.
#[derive(Clone, Copy)]
enum Special {
    Start = 1,
    End,
    NewLine,
    VisionStart,
    VisionEnd,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServedMessage {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    image_url: Option<ImageUrl>,
}

#[derive(Debug, Deserialize)]
struct ImageUrl {
    url: String,
}

impl ServedMessage {
    /// Returns the content if it is one text.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            Some(Content::Text(text)) => Some(text),
            _ => None,
        }
    }
}

/// Returns the prompt of a chat.
pub(super) fn prompt(messages: &[ServedMessage], limits: &ServedLimits) -> Result<Vec<u32>, ErrorResponse> {
    let vocabulary = limits.vocab_size.max(1);
    let special = |token: Special| to_saturated_u32((vocabulary - 1).saturating_sub(token as u64));
    let mut prompt = Vec::new();
    let open = |prompt: &mut Vec<u32>, role: &str| {
        let role = tokenize(role, vocabulary).first().copied().unwrap_or(0);
        prompt.extend([special(Special::Start), role, special(Special::NewLine)]);
    };
    for message in messages {
        open(&mut prompt, &message.role);
        match &message.content {
            None => {}
            Some(Content::Text(text)) => prompt.extend(tokenize(text, vocabulary)),
            Some(Content::Parts(parts)) => {
                for part in parts {
                    match (part.kind.as_str(), &part.text, &part.image_url) {
                        ("text", Some(text), _) => prompt.extend(tokenize(text, vocabulary)),
                        ("image_url", _, Some(image)) => {
                            prompt.push(special(Special::VisionStart));
                            prompt.extend(image_tokens(&image.url, limits)?);
                            prompt.push(special(Special::VisionEnd));
                        }
                        ("text" | "image_url", ..) => {
                            return Err(ErrorResponse::bad(format!(
                                "Missing '{}' field in multimodal part.",
                                part.kind
                            )));
                        }
                        (kind, ..) => return Err(ErrorResponse::bad(format!("Unknown part type: {kind}"))),
                    }
                }
            }
        }
        prompt.extend([special(Special::End), special(Special::NewLine)]);
    }
    open(&mut prompt, "assistant");
    Ok(prompt)
}

/// Returns the tokens of an image. Equal images have equal tokens, so that they share their prefix; different images
/// differ.
fn image_tokens(url: &str, limits: &ServedLimits) -> Result<Vec<u32>, ErrorResponse> {
    if !limits.multimodal {
        return Err(ErrorResponse::bad(format!("{} is not a multimodal model", limits.root)));
    }
    let Some(data) = url.strip_prefix("data:") else {
        let message = if url.starts_with("http") {
            "the simulated engine opens no connections: send images as data URLs"
        } else {
            "The URL must be either a HTTP, data or file URL."
        };
        return Err(ErrorResponse::bad(message));
    };
    let Some((_, base64)) = data.split_once(";base64,") else {
        return Err(ErrorResponse::bad("Only base64 data URLs are supported for now."));
    };
    let bytes = BASE64.decode(base64).map_err(|error| ErrorResponse::bad(format!("Incorrect padding: {error}")))?;
    let (width, height) = size(&bytes).ok_or_else(|| ErrorResponse::bad("cannot identify image file"))?;
    let vocabulary = limits.vocab_size.max(1);
    // The FNV-1a hash of the image. A linear congruential generator spreads its digits over the patches.
    let hash = Fnv1a::new().with(&bytes).value();
    let token = |patch: u64| {
        let mixed = hash.wrapping_add(patch).wrapping_mul(0x5851_f42d_4c95_7f2d) >> 33;
        to_saturated_u32(mixed % vocabulary)
    };
    Ok((0..patches(width, height)).map(token).collect())
}

/// Returns the number of tokens of an image: the product of its sides in patches, each rounded and at least 1.
fn patches(width: u32, height: u32) -> u64 {
    let side = |pixels: u32| u64::from((pixels.saturating_add(PATCH / 2) / PATCH).max(1));
    side(width).saturating_mul(side(height)).min(MAX_PATCHES)
}

/// Reads width and height from the header of a PNG file.
fn size(png: &[u8]) -> Option<(u32, u32)> {
    let rest = png.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")?;
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
    Some((number(rest.get(..4)?)?, number(rest.get(4..8)?)?))
}

fn to_saturated_u32(token: u64) -> u32 {
    u32::try_from(token).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn ask(multimodal: bool, messages: Json) -> Result<Vec<u32>, ErrorResponse> {
        let limits = ServedLimits {
            version: "0.32.0".parse().unwrap(),
            served_names: vec!["m".to_owned()],
            root: "org/m".to_owned(),
            max_model_len: 1024,
            vocab_size: 1000,
            multimodal,
            refuses_priority: false,
        };
        prompt(&serde_json::from_value::<Vec<ServedMessage>>(messages).unwrap(), &limits)
    }

    /// Returns an image part with the PNG header only, because the rest is never read.
    fn image(width: u32, height: u32) -> Json {
        let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
        let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &size].concat();
        json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", BASE64.encode(png))}})
    }

    #[test]
    fn the_template_adds_five_tokens_to_each_message_and_three_at_the_end() {
        let message = |role: &str, content: Json| json!({"role": role, "content": content});
        let one = ask(false, json!([message("user", json!("twelve bytes"))])).unwrap();
        assert_eq!(one.len(), 5 + 3 + 3);
        let parts = json!([{"type": "text", "text": "twelve bytes"}]);
        assert_eq!(ask(false, json!([message("user", parts)])).unwrap(), one);
        let two = ask(false, json!([message("user", json!("twelve bytes")), message("assistant", Json::Null)]));
        assert_eq!(two.unwrap().len(), one.len() + 5);
        assert!(one.iter().all(|token| *token < 1000));
    }

    #[test]
    fn an_image_costs_its_patches_and_two_tokens() {
        let tokens = |part: Json| ask(true, json!([{"role": "user", "content": [part]}])).unwrap();
        assert_eq!(tokens(image(280, 560)).len(), 8 + 2 + 10 * 20);
        assert_eq!(tokens(image(1, 41)).len(), 8 + 2 + 1);
        assert_eq!(tokens(image(u32::MAX, u32::MAX)).len(), 8 + 2 + 16_384);
        assert_eq!(tokens(image(280, 280)), tokens(image(280, 280)));
        assert_ne!(tokens(image(280, 280)), tokens(image(281, 280)));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        for (multimodal, part, text) in [
            (false, image(28, 28), "org/m is not a multimodal model"),
            (true, url("ftp://x"), "The URL must be either a HTTP, data or file URL."),
            (true, url("https://x/y.png"), "send images as data URLs"),
            (true, url("data:image/png,x"), "Only base64 data URLs"),
            (true, url("data:image/png;base64,%"), "Incorrect padding"),
            (true, url("data:image/png;base64,AAAA"), "cannot identify image file"),
            (true, json!({"type": "text"}), "Missing 'text' field"),
            (true, json!({"type": "audio"}), "Unknown part type: audio"),
        ] {
            let complaint = ask(multimodal, json!([{"role": "user", "content": [part]}])).unwrap_err();
            assert_eq!(complaint.status.as_u16(), 400);
            assert!(complaint.message.contains(text), "{complaint:?}");
        }
    }
}
