//! Determines the target of `bench` from the arguments and from the server's list of models.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value as Json};
use url::Url;

use super::arguments::{ApiName, ServerArgs};
use crate::cli::CommandFailure;
use crate::cli::failure::{ENGINE_NEVER_HEALTHY, INVALID, USAGE};
use crate::load::{BearerKey, Dialect, LoadTarget, RequestApi};

/// Default environment variable of the API key, as in OpenAI's own programs.
const DEFAULT_KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// Time limit of the request for the list of models. A healthy server answers it at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The requested model's entry in the server's list `/v1/models`. Empty if the server does not list the model.
#[derive(Clone, Debug, Default)]
pub(super) struct ServedModel {
    /// The largest total of prompt and output, in tokens.
    pub(super) max_model_len: Option<u64>,
    /// The directory that the server loaded the model from, if a directory of that path exists on this machine.
    pub(super) directory: Option<PathBuf>,
}

/// Returns the load's target, and the model's entry in the server's list.
pub(super) async fn find(args: &ServerArgs) -> Result<(LoadTarget, ServedModel), CommandFailure> {
    let mut target = from_arguments(args)?;
    let Some(models) = fetch_models(&target).await? else {
        let Some(model) = &args.model else {
            return Err(
                CommandFailure::new(USAGE, "the server does not list its models").with_hint("give --model NAME")
            );
        };
        target.model.clone_from(model);
        return Ok((target, ServedModel::default()));
    };
    target.model = choose(args.model.as_deref(), &models)?;
    let entry = models.iter().find(|model| model["id"] == *target.model);
    Ok((target, entry.map(served).unwrap_or_default()))
}

fn served(entry: &Json) -> ServedModel {
    let root = entry["root"].as_str().map(PathBuf::from).filter(|root| root.is_absolute() && root.is_dir());
    ServedModel { max_model_len: entry["max_model_len"].as_u64(), directory: root }
}

/// Returns the requested model's name, or the only one that the server lists.
fn choose(asked: Option<&str>, models: &[Json]) -> Result<String, CommandFailure> {
    let names: Vec<_> = models.iter().filter_map(|model| model["id"].as_str()).collect();
    match (asked, names.as_slice()) {
        (Some(asked), names) if names.contains(&asked) => Ok(asked.to_owned()),
        (Some(asked), []) => Ok(asked.to_owned()),
        (Some(asked), names) => Err(CommandFailure::new(USAGE, format!("the server does not serve {asked:?}"))
            .with_hint(format!("it serves {}", names.join(", ")))),
        (None, [name]) => Ok((*name).to_owned()),
        (None, []) => Err(CommandFailure::new(USAGE, "the server lists no model").with_hint("give --model NAME")),
        (None, names) => Err(CommandFailure::new(USAGE, format!("the server serves {} models", names.len()))
            .with_hint(format!("give --model with one of {}", names.join(", ")))),
    }
}

/// Returns the entries of `/v1/models`; `None` if the server has no such list.
async fn fetch_models(target: &LoadTarget) -> Result<Option<Vec<Json>>, CommandFailure> {
    let base = target.base_url.trim_end_matches('/').trim_end_matches("/v1");
    let url = format!("{base}/v1/models");
    let gone = |problem: String| {
        CommandFailure::new(ENGINE_NEVER_HEALTHY, format!("no answer from {url}: {problem}"))
            .with_hint("start the server first, wait until it is ready, and check --url")
    };
    let client = reqwest::Client::builder().no_proxy().timeout(ANSWER_LIMIT).build();
    let client =
        client.map_err(|error| CommandFailure::unexpected(format!("cannot build the http client: {error}")))?;
    let mut request = client.get(&url);
    if let Some(key) = &target.api_key {
        request = request.bearer_auth(&key.0);
    }
    for (name, value) in &target.headers {
        request = request.header(name, value);
    }
    let mut response = match request.send().await {
        Ok(response) => response,
        // This HTTP client is built without TLS, so it cannot read the list. The load generator has its own TLS.
        Err(error) if error.is_builder() && url.starts_with("https:") => return Ok(None),
        Err(error) if error.is_builder() => {
            return Err(CommandFailure::new(
                USAGE,
                format!("cannot use the url {:?}: {}", target.base_url, innermost(&error)),
            ));
        }
        Err(error) => return Err(gone(innermost(&error))),
    };
    match response.status().as_u16() {
        200 => {}
        status @ (401 | 403) => {
            return Err(CommandFailure::new(USAGE, format!("{url} answers with http status {status}"))
                .with_hint("name the environment variable that holds the key with --api-key-env"));
        }
        status @ 500.. => return Err(gone(format!("http status {status}"))),
        // Not every server has the list.
        _ => return Ok(None),
    }
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| gone(innermost(&error)))? {
        if text.len() + chunk.len() > MAX_LIST_BYTES {
            return Err(gone(format!("its list of models has more than {MAX_LIST_BYTES} bytes")));
        }
        text.extend_from_slice(&chunk);
    }
    let body: Json = serde_json::from_slice(&text).map_err(|error| gone(error.to_string()))?;
    Ok(body["data"].as_array().cloned())
}

/// Largest accepted list of models, in bytes.
const MAX_LIST_BYTES: usize = 4 << 20;

/// Returns the message of the last error in the chain of causes. It is the one that users can act on.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl From<ApiName> for RequestApi {
    fn from(name: ApiName) -> Self {
        match name {
            ApiName::Completions => Self::Completions,
            ApiName::Chat => Self::Chat,
        }
    }
}

/// Returns the target without the model's name.
fn from_arguments(args: &ServerArgs) -> Result<LoadTarget, CommandFailure> {
    let url = args.url.trim();
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        let message = format!("--url {url:?} is no http or https address");
        return Err(CommandFailure::new(USAGE, message).with_hint("give an address such as http://127.0.0.1:8000"));
    }
    let Some(dialect) = Dialect::from_name(&args.server) else {
        return Err(CommandFailure::new(USAGE, format!("unknown server {:?}", args.server)));
    };
    if let Some(file) = args.ca_file.as_deref().filter(|file| !file.is_file()) {
        return Err(CommandFailure::new(INVALID, format!("--ca-file {} cannot be read", file.display())));
    }
    Ok(LoadTarget {
        api: args.api.map_or(RequestApi::Completions, RequestApi::from),
        dialect,
        stream: !args.no_stream,
        api_key: key(args.api_key_env.as_deref(), |name| std::env::var(name).ok())?,
        headers: args.header.iter().map(|line| header(line)).collect::<Result<_, _>>()?,
        extra_body: args.extra_body.as_deref().map(extra_body).transpose()?.unwrap_or_default(),
        ca_file: args.ca_file.clone(),
        ..LoadTarget::new(url, "")
    })
}

/// Reads the API key. A variable that the user named must hold a key. The default variable may be absent or blank.
fn key(asked: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Option<BearerKey>, CommandFailure> {
    let value =
        variable(asked.unwrap_or(DEFAULT_KEY_VARIABLE)).map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    match (asked, value) {
        (Some(name), None) => Err(CommandFailure::new(
            USAGE,
            format!("--api-key-env: the environment variable {name} is not set, or empty"),
        )
        .with_hint("give the name of a variable that holds the key, not the key itself")),
        (_, value) => Ok(value.map(BearerKey)),
    }
}

fn header(line: &str) -> Result<(String, String), CommandFailure> {
    match line.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.trim().to_owned())),
        // The message omits the value, which may be a secret.
        _ => Err(CommandFailure::new(USAGE, "--header is not of the form 'NAME: VALUE'")),
    }
}

fn extra_body(text: &str) -> Result<Map<String, Json>, CommandFailure> {
    let hint = "give an object such as '{\"top_p\": 0.9}'";
    match serde_json::from_str(text) {
        Ok(Json::Object(map)) => Ok(map),
        Ok(_) => Err(CommandFailure::new(USAGE, "--extra-body is no JSON object").with_hint(hint)),
        Err(error) => Err(CommandFailure::new(USAGE, format!("--extra-body is not JSON: {error}")).with_hint(hint)),
    }
}

/// Returns the host of a URL, with the port if the URL contains one. Name and password are left out.
pub(super) fn host(url: &str) -> String {
    let Ok(url) = Url::parse(url) else { return String::new() };
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns the size of the vocabulary in the model's `config.json`. Synthetic prompts are drawn from that vocabulary.
/// `directory` may also be a file in the model's directory, such as its tokenizer.
pub(super) fn vocab_size(directory: &Path) -> Option<u32> {
    let directory = if directory.is_file() { directory.parent()? } else { directory };
    let shape = crate::facts::ModelShape::read(directory).ok()?;
    u32::try_from(shape.vocab_size?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_only_model_is_the_default_and_another_name_is_refused() {
        let one = [json!({"id": "a"})];
        let two = [json!({"id": "a"}), json!({"id": "b"})];
        assert_eq!(choose(None, &one).unwrap(), "a");
        assert_eq!(choose(Some("b"), &two).unwrap(), "b");
        assert_eq!(choose(Some("x"), &[]).unwrap(), "x");
        assert!(choose(None, &two).is_err());
        assert!(choose(Some("c"), &two).is_err());
    }

    #[test]
    fn a_named_key_must_exist_and_the_default_one_may_be_absent() {
        let with = |wanted: &'static str| move |name: &str| (name == wanted).then(|| " secret\n".to_owned());
        assert_eq!(key(Some("K"), with("K")).unwrap(), Some(BearerKey("secret".to_owned())));
        assert_eq!(key(None, with(DEFAULT_KEY_VARIABLE)).unwrap(), Some(BearerKey("secret".to_owned())));
        assert_eq!(key(None, with("K")).unwrap(), None);
        assert!(key(Some("K"), with(DEFAULT_KEY_VARIABLE)).is_err());
    }

    #[test]
    fn headers_and_extra_fields_have_their_forms() {
        assert_eq!(header("X-A:  b: c ").unwrap(), ("X-A".to_owned(), "b: c".to_owned()));
        assert!(header("no colon").is_err() && header(": x").is_err());
        assert_eq!(extra_body(r#"{"top_p": 1}"#).unwrap()["top_p"], 1);
        assert!(extra_body("[1]").is_err() && extra_body("{").is_err());
    }

    #[test]
    fn a_host_is_shown_with_its_port_and_without_credentials() {
        assert_eq!(host("http://gpu-7:8000/v1"), "gpu-7:8000");
        assert_eq!(host("https://user:secret@gpu-7/v1"), "gpu-7");
    }
}
