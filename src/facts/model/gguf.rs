//! The metadata of a GGUF file (`docs/gguf.md` of ggml), translated to the keys of a `config.json`.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

/// The first bytes of a file.
const MAGIC: [u8; 4] = *b"GGUF";

/// Versions with lengths of 64 bits. Version 1 has not been written since 2023.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;

/// Larger numbers of entries, and longer texts and arrays, are treated as damage.
const MAX_ENTRIES: u64 = 1 << 20;
const MAX_BYTES: u64 = 1 << 28;

/// Longer arrays of numbers are not kept. One for each layer has some hundred elements.
const MAX_KEPT: u64 = 4096;

/// Returns whether the file begins like a GGUF file.
#[must_use]
pub fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == MAGIC
}

/// Reads the metadata. Returns the keys of a `config.json` that describe the same model.
///
/// # Errors
/// If the file cannot be read, is damaged, or has another version.
pub(super) fn read_config(path: &Path) -> io::Result<Json> {
    let mut input = GgufReader { input: BufReader::new(File::open(path)?) };
    let damaged = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    if input.bytes::<4>()? != MAGIC {
        return Err(damaged("it does not begin with GGUF".to_owned()));
    }
    let version = u32::from_le_bytes(input.bytes()?);
    if !VERSIONS.contains(&version) {
        return Err(damaged(format!("version {version} is not supported, only {VERSIONS:?}")));
    }
    let _tensors = input.number()?;
    let entries = input.number()?;
    if entries > MAX_ENTRIES {
        return Err(damaged(format!("it claims to have {entries} entries")));
    }
    let mut metadata = serde_json::Map::new();
    for _ in 0..entries {
        let key = input.text()?;
        let kind = u32::from_le_bytes(input.bytes()?);
        metadata.insert(key, input.value(kind)?);
    }
    Ok(config_of(&metadata))
}

/// Returns the bytes of a model's files: this one, and its other parts if the name is one of `-00001-of-00003.gguf`.
pub(super) fn model_bytes(path: &Path) -> Option<u64> {
    parts(path).iter().map(|part| Some(part.metadata().ok()?.len())).sum()
}

/// Returns the files of a divided model, or the file itself.
fn parts(path: &Path) -> Vec<PathBuf> {
    let divided = || {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (begin, count) = stem.rsplit_once("-of-")?;
        let (begin, _) = begin.rsplit_once('-')?;
        let number: u32 = count.parse().ok().filter(|number| (1..=10_000).contains(number))?;
        let part = |index: u32| path.with_file_name(format!("{begin}-{index:05}-of-{count}.gguf"));
        Some((1..=number).map(part).collect())
    };
    divided().unwrap_or_else(|| vec![path.to_owned()])
}

/// Translates the names of `gguf-py/gguf/constants.py` to those of `transformers`.
fn config_of(metadata: &serde_json::Map<String, Json>) -> Json {
    let family = metadata.get("general.architecture").and_then(Json::as_str).unwrap_or_default();
    let of_family = |name: &str| metadata.get(&format!("{family}.{name}"));
    // A number for each layer: the largest one, because a shape has one number.
    let number = |name: &str| match of_family(name)? {
        Json::Array(layers) => layers.iter().filter_map(Json::as_u64).max(),
        one => one.as_u64(),
    };
    let mut config = serde_json::Map::new();
    config.insert("model_type".to_owned(), json!(family));
    for (key, name) in [
        ("hidden_size", "embedding_length"),
        ("num_hidden_layers", "block_count"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("head_dim", "attention.key_length"),
        ("intermediate_size", "feed_forward_length"),
        ("max_position_embeddings", "context_length"),
        ("sliding_window", "attention.sliding_window"),
        ("num_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
    ] {
        // Dense models state no experts, or zero.
        if let Some(number) = number(name).filter(|number| *number > 0) {
            config.insert(key.to_owned(), json!(number));
        }
    }
    // The array is not kept, but its length.
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Json::as_u64);
    if let Some(size) = number("vocab_size").or(tokens) {
        config.insert("vocab_size".to_owned(), json!(size));
    }
    Json::Object(config)
}

struct GgufReader<R> {
    input: R,
}

impl<R: Read> GgufReader<R> {
    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn length(&mut self) -> io::Result<u64> {
        let length = self.number()?;
        if length > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has a length of {length}")));
        }
        Ok(length)
    }

    fn text(&mut self) -> io::Result<String> {
        let length = self.length()?;
        let mut bytes = Vec::new();
        self.input.by_ref().take(length).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).ok() != Some(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads a value of this type. An array of texts, and a long one of numbers, is returned as its length.
    fn value(&mut self, kind: u32) -> io::Result<Json> {
        Ok(match kind {
            0 => json!(u8::from_le_bytes(self.bytes()?)),
            1 => json!(i8::from_le_bytes(self.bytes()?)),
            2 => json!(u16::from_le_bytes(self.bytes()?)),
            3 => json!(i16::from_le_bytes(self.bytes()?)),
            4 => json!(u32::from_le_bytes(self.bytes()?)),
            5 => json!(i32::from_le_bytes(self.bytes()?)),
            6 => json!(f32::from_le_bytes(self.bytes()?)),
            7 => json!(self.bytes::<1>()? != [0]),
            8 => json!(self.text()?),
            9 => {
                let kind = u32::from_le_bytes(self.bytes()?);
                if kind == 9 {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "it has an array of arrays"));
                }
                let length = self.length()?;
                let mut kept = Vec::new();
                for _ in 0..length {
                    let value = self.value(kind)?;
                    if kind != 8 && length <= MAX_KEPT {
                        kept.push(value);
                    }
                }
                if kind == 8 || length > MAX_KEPT { json!(length) } else { Json::Array(kept) }
            }
            10 => json!(self.number()?),
            11 => json!(i64::from_le_bytes(self.bytes()?)),
            12 => json!(f64::from_le_bytes(self.bytes()?)),
            other => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has a value of the type {other}")));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ModelShape;

    fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        let mut bytes = (key.len() as u64).to_le_bytes().to_vec();
        bytes.extend(key.as_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        bytes
    }

    fn text(text: &str) -> Vec<u8> {
        [(text.len() as u64).to_le_bytes().as_slice(), text.as_bytes()].concat()
    }

    fn file(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend((entries.len() as u64).to_le_bytes());
        bytes.extend(entries.concat());
        bytes
    }

    fn small_model() -> Vec<u8> {
        let number = |key: &str, number: u32| entry(key, 4, &number.to_le_bytes());
        let tokens =
            [8_u32.to_le_bytes().as_slice(), &3_u64.to_le_bytes(), &text("a"), &text("b"), &text("c")].concat();
        // One number for each of two layers.
        let heads = [4_u32.to_le_bytes().to_vec(), 2_u64.to_le_bytes().to_vec(), vec![3, 0, 0, 0, 1, 0, 0, 0]];
        file(&[
            entry("general.architecture", 8, &text("llama")),
            number("llama.block_count", 30),
            number("llama.context_length", 2048),
            number("llama.embedding_length", 576),
            number("llama.feed_forward_length", 1536),
            number("llama.attention.head_count", 9),
            entry("llama.attention.head_count_kv", 9, &heads.concat()),
            number("llama.expert_count", 0),
            entry("llama.rope.freq_base", 6, &10_000_f32.to_le_bytes()),
            entry("tokenizer.ggml.tokens", 9, &tokens),
        ])
    }

    #[test]
    fn the_shape_of_a_model_is_read_from_its_metadata() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.gguf");
        std::fs::write(&path, small_model()).unwrap();
        let shape = ModelShape::read(&path).unwrap();
        assert!(is_gguf(&path));
        assert_eq!((shape.layers, shape.hidden_size, shape.vocab_size), (Some(30), Some(576), Some(3)));
        assert_eq!((shape.attention_heads, shape.kv_heads, shape.head_dim), (Some(9), Some(3), Some(64)));
        assert_eq!((shape.lengths.stated, shape.experts), (Some(2048), None));
        assert_eq!(shape.checkpoint_bytes, Some(small_model().len() as u64));
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.gguf");
        let whole = small_model();
        for (bytes, expected) in [
            (b"GGUX".to_vec(), "does not begin with GGUF"),
            ([b"GGUF".as_slice(), &1_u32.to_le_bytes()].concat(), "version 1 is not supported"),
            (whole[..whole.len() - 1].to_vec(), "unexpected end of file"),
            (file(&[entry("a", 13, &[])]), "type 13"),
            (file(&[entry("a", 8, &u64::MAX.to_le_bytes())]), "length of"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = read_config(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_divided_model_has_several_files() {
        let names = |name: &str| {
            let parts = parts(&Path::new("/models").join(name));
            parts.iter().map(|part| part.file_name().unwrap().to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("m-00001-of-00002.gguf"), ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);
        assert_eq!(names("m-of-x.gguf"), ["m-of-x.gguf"]);
    }
}
