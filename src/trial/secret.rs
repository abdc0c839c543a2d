//! Secrets, by the name of their variable or by their shape. Their values are neither stored nor shown.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The replacement of a secret's value in everything that is stored, shown or exported.
pub const REDACTED: &str = "(redacted)";

/// Returns whether the name of a variable or flag indicates a secret.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name = name.split('=').next().unwrap_or(name).trim_start_matches('-').to_ascii_uppercase();
    let words: Vec<_> = name.split(['_', '-']).collect();
    let alone = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY"];
    // `PGPASSWORD`, `DOCKERPASSWORD`
    let ends = ["PASSWORD", "PASSWD", "APIKEY", "SECRET"];
    // vLLM's `--long-prefill-token-threshold` and `--return-tokens-as-token-ids` have a number or a switch.
    let quantities = ["THRESHOLD", "IDS", "ID", "LIMIT", "COUNT", "LENGTH", "BUDGET"];
    let is_quantity = |index: usize| words.get(index + 1).is_some_and(|next| quantities.contains(next));
    let is_alone = |index: usize, word: &str| alone.contains(&word) && !(word == "TOKEN" && is_quantity(index));
    let is_secret = |(index, word): (usize, &&str)| is_alone(index, word) || ends.iter().any(|end| word.ends_with(end));
    words.iter().enumerate().any(is_secret)
        || words.windows(2).any(|pair| matches!(pair, ["API" | "ACCESS" | "PRIVATE" | "SECRET" | "AUTH", "KEY"]))
}

/// Secrets by their shape. The groups `url`, `named` and `scheme` match the text before the secret, which is kept.
static SECRET_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let shapes = [
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
        // Passwords in URLs, which may contain an `@` themselves, and the only part of `https://TOKEN@host`.
        r"(?P<url>\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:'\x22]*:|\bhttps?://)[^\s/'\x22]+@",
        // Parameters of URLs and headers, and assignments in texts.
        r"(?i)(?P<named>\b(?:authorization|x-api-key|api[_-]?key|access[_-]?token|auth[_-]?token|client[_-]?secret|password|passwd|secret|sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential)['\x22]?(?:=|: ?)['\x22]?(?:(?:bearer|basic|token) )?)[^\s&'\x22,;()}\]][^\s&'\x22,;)}\]]*",
        r"(?i)(?P<scheme>\b(?:bearer|basic) )[A-Za-z0-9._~+/=-]{16,}",
        // Hugging Face, OpenAI and Anthropic, GitHub and GitLab, AWS, Google, Slack, Weights & Biases, NVIDIA, npm,
        // PyPI, Stripe, Docker, DigitalOcean, Databricks, Groq, xAI, Replicate, Perplexity, Azure.
        r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}",
        r"\bsk-[A-Za-z0-9_-]{16,}",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|gl(?:pat|rt|dt|cbt|ptt|ft)-[A-Za-z0-9_-]{16,})",
        r"\b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}\b",
        r"\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}|\bGOCSPX-[A-Za-z0-9_-]{16,}",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-[A-Za-z0-9-]{10,}|\bhooks\.slack\.com/services/[A-Za-z0-9/]+",
        r"\bnvapi-[A-Za-z0-9_-]{20,}|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_-]{30,}|\bdckr_pat_[A-Za-z0-9_-]{20,}",
        r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|\bwhsec_[A-Za-z0-9]{16,}|\bdop_v1_[a-f0-9]{32,}|\bdapi[a-f0-9]{32}\b",
        r"\bgsk_[A-Za-z0-9]{20,}|\bxai-[A-Za-z0-9]{20,}|\br8_[A-Za-z0-9]{20,}|\bpplx-[A-Za-z0-9]{20,}",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)*",
    ];
    let pattern = shapes.map(|shape| format!("(?:{shape})")).join("|");
    Regex::new(&pattern).unwrap_or_else(|error| panic!("bug: {error}"))
});

/// Replaces text that looks like a secret: passwords in URLs, keys of known services, bearer tokens, JSON web tokens
/// and private keys. Texts without any are returned unchanged.
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    SECRET_PATTERN.replace_all(text, |found: &Captures<'_>| {
        let kept = ["url", "named", "scheme"].iter().find_map(|name| found.name(name));
        let kept = kept.map_or("", |kept| kept.as_str());
        // In a text that was redacted before, the match consists of the scheme alone and contains no secret.
        let secret = &found[0][kept.len()..];
        if ["bearer", "basic", "token"].iter().any(|scheme| secret.eq_ignore_ascii_case(scheme)) {
            return found[0].to_owned();
        }
        // The `@` ends the secret and is not part of it.
        let end = if found.name("url").is_some() { "@" } else { "" };
        format!("{kept}{REDACTED}{end}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_recognised_by_the_words_of_their_names() {
        for name in [
            "--hf-token",
            "--api-key=x",
            "HF_TOKEN",
            "OPENAI_API_KEY",
            "aws_secret_access_key",
            "DB_PASSWORD",
            "PGPASSWORD",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "--max-num-batched-tokens",
            "TOKENIZERS_PARALLELISM",
            "HF_HUB_OFFLINE",
            "CUDA_VISIBLE_DEVICES",
            "VLLM_CPU_KVCACHE_SPACE",
            "OMP_NUM_THREADS",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn secrets_are_recognised_by_their_shape() {
        let letters = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5hJ7k";
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P";
        let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----";
        for (text, expected) in [
            ("postgres://ada:s3cr3t@db:5432/x", "postgres://ada:(redacted)@db:5432/x".to_owned()),
            ("http://ada:p@ss:word@proxy", "http://ada:(redacted)@proxy".to_owned()),
            ("http://:pw@proxy", "http://:(redacted)@proxy".to_owned()),
            ("https://token@github.com/a", "https://(redacted)@github.com/a".to_owned()),
            (&format!("a hf_{letters} b"), "a (redacted) b".to_owned()),
            (&format!("sk-proj-{letters}"), REDACTED.to_owned()),
            (&format!("--token=ghp_{letters}"), "--token=(redacted)".to_owned()),
            (&format!("github_pat_{letters}"), REDACTED.to_owned()),
            ("AKIAIOSFODNN7EXAMPLE", REDACTED.to_owned()),
            (&format!("Authorization: Bearer {letters}"), "Authorization: Bearer (redacted)".to_owned()),
            (&format!("'x-api-key': '{letters}'"), "'x-api-key': '(redacted)'".to_owned()),
            (&format!("with Bearer {letters}."), "with Bearer (redacted)".to_owned()),
            (jwt, REDACTED.to_owned()),
            (pem, REDACTED.to_owned()),
            ("url?X-Amz-Signature=abc123&x=1", "url?X-Amz-Signature=(redacted)&x=1".to_owned()),
            ("api_key=abc", "api_key=(redacted)".to_owned()),
        ] {
            assert_eq!(redact(text), expected, "{text}");
            assert_eq!(redact(&expected), expected, "what is redacted stays as it is");
        }
    }

    #[test]
    fn a_number_of_tokens_is_no_secret() {
        for name in ["--long-prefill-token-threshold", "--return-tokens-as-token-ids", "--max-num-batched-tokens"] {
            assert!(!is_secret(name), "{name}");
        }
        for name in ["HF_TOKEN", "--hf-token", "TOKEN", "TOKEN_FILE", "GITHUB_TOKEN_2"] {
            assert!(is_secret(name), "{name}");
        }
    }

    #[test]
    fn texts_without_secrets_stay_as_they_are() {
        for text in [
            "vllm serve org/model --max-num-seqs 64 --port 8000",
            "http://127.0.0.1:8000/v1/completions",
            "https://huggingface.co/org/model/resolve/main/config.json",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 748.00 MiB.",
            "user@host:/models/a",
            "ssh://ada@gpu-box:22/run",
            "https://host/a@b",
            "/home/ada/.cache/hf_hub/models--org--sk-model",
            r#"{"method": "eagle3", "model": "org/draft"}"#,
            "basic authentication is required",
            "tokens per second: 5",
            "the secret is out",
        ] {
            assert!(matches!(redact(text), Cow::Borrowed(_)), "{text}: {}", redact(text));
        }
    }

    #[test]
    fn a_launch_and_a_failure_are_stored_without_secrets() {
        use crate::trial::{CommandLine, Failure, FailureKind, LaunchCommand, Outcome};
        let env = [("HF_TOKEN", "x"), ("https_proxy", "http://ada:s3cr3t@proxy:3128"), ("OMP_NUM_THREADS", "8")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let command = [
            "docker",
            "-e",
            "DATABASE_URL=postgres://ada:s3cr3t@db/x",
            "--api-key",
            "a",
            "--hf-token=b",
            "-e",
            "A_TOKEN=c",
        ];
        let command = command.map(str::to_owned);
        let launch = LaunchCommand::redacted(&CommandLine::from_words(command.to_vec()), env);
        assert_eq!(launch.command[2], "DATABASE_URL=postgres://ada:(redacted)@db/x");
        let secrets = ["--api-key", REDACTED, "--hf-token=(redacted)", "-e", "A_TOKEN=(redacted)"];
        assert_eq!(launch.command[3..], secrets);
        let values: Vec<_> = launch.env.values().map(String::as_str).collect();
        assert_eq!(values, [REDACTED, "8", "http://ada:(redacted)@proxy:3128"]);
        let message = "status 500: \u{1b}[2Jhttp://ada:s3cr3t@proxy\nsecond".to_owned();
        let outcome = Outcome::Failed(Failure { kind: FailureKind::RequestErrors, message }).for_storage();
        assert_eq!(outcome.failure().unwrap().message, "status 500: http://ada:(redacted)@proxy second");
    }
}
