//! Dependencies between flags of the HTTP server (`validate_parsed_serve_args` in vLLM 0.32).

use super::{Candidate, Rule, Violation, refusal};

pub(super) const RULES: &[Rule] = &[
    refusal("F1", "flags that need another flag have it", needs),
    refusal("F2", "the server's numbers are not negative", numbers),
    refusal("F3", "options of metrics and traces are valid", observability),
];

fn needs(candidate: &Candidate<'_>) -> Option<Violation> {
    let refused = |message: &str, flag: &str| Some(Violation::new(message).unset(flag));
    if candidate.is_on("enable-auto-tool-choice") && !candidate.has("tool-call-parser") {
        let message = "Error: --enable-auto-tool-choice requires --tool-call-parser";
        return refused(message, "enable-auto-tool-choice");
    }
    if candidate.is_on("enable-log-outputs") && !candidate.is_on("enable-log-requests") {
        return refused("Error: --enable-log-outputs requires --enable-log-requests", "enable-log-outputs");
    }
    if candidate.is_on("enable-per-request-metrics") && candidate.is_on("disable-log-stats") {
        let message = "Error: --enable-per-request-metrics requires engine statistics logging; remove \
                       --disable-log-stats to enable per-request metrics.";
        return refused(message, "enable-per-request-metrics");
    }
    let rust = candidate.facts.env.get("VLLM_USE_RUST_FRONTEND").is_some_and(|value| value == "1");
    if candidate.has("grpc-port") && !rust {
        return refused("--grpc-port requires VLLM_USE_RUST_FRONTEND=1 vllm serve", "grpc-port");
    }
    None
}

fn numbers(candidate: &Candidate<'_>) -> Option<Violation> {
    let interval = candidate.number("sse-keep-alive-interval").filter(|interval| *interval < 0)?;
    let message = format!(
        "Error: --sse-keep-alive-interval must be a non-negative integer (0 disables keep-alive comments), not {interval}"
    );
    Some(Violation::new(message).unset("sse-keep-alive-interval"))
}

fn observability(candidate: &Candidate<'_>) -> Option<Violation> {
    if let Some(version) = candidate.config.get("show-hidden-metrics-for-version").map(ToString::to_string)
        && !version.is_empty()
        && version != "None"
        && !is_version(&version)
    {
        let message = format!("show_hidden_metrics_for_version: Invalid version: '{version}'");
        return Some(Violation::new(message).unset("show-hidden-metrics-for-version"));
    }
    if candidate.has("collect-detailed-traces") && !candidate.has("otlp-traces-endpoint") {
        let message = "collect_detailed_traces requires `--otlp-traces-endpoint` to be set.";
        return Some(Violation::new(message).unset("collect-detailed-traces"));
    }
    None
}

/// Returns whether the text is a version of a Python package, such as `v1!2.3rc1.post4.dev5+local`.
fn is_version(text: &str) -> bool {
    const SUFFIXES: [&str; 11] = ["alpha", "beta", "preview", "post", "dev", "rev", "pre", "rc", "a", "b", "c"];
    let text = text.trim().to_lowercase();
    let text = text.strip_prefix('v').unwrap_or(&text);
    let public = text.split_once('+').map_or(text, |(public, _)| public);
    let release = match public.split_once('!') {
        Some((epoch, release)) if !epoch.is_empty() && epoch.bytes().all(|byte| byte.is_ascii_digit()) => release,
        Some(_) => return false,
        None => public,
    };
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(release.len());
    let (numbers, suffix) = release.split_at(end);
    let numbers = if suffix.is_empty() { numbers } else { numbers.strip_suffix('.').unwrap_or(numbers) };
    let whole = !numbers.is_empty() && numbers.split('.').all(|part| !part.is_empty());
    let known =
        suffix.is_empty() || SUFFIXES.iter().any(|name| suffix.trim_start_matches(['-', '_']).starts_with(name));
    whole && known
}

#[cfg(test)]
mod tests {
    use super::is_version;
    use crate::engines::vllm::rules::tests::on_cpu;

    #[test]
    fn flags_that_need_another_flag_have_it() {
        assert_eq!(on_cpu("--enable-auto-tool-choice"), Some("F1"));
        assert_eq!(on_cpu("--enable-auto-tool-choice --tool-call-parser hermes"), None);
        assert_eq!(on_cpu("--enable-log-outputs"), Some("F1"));
        assert_eq!(on_cpu("--sse-keep-alive-interval -1"), Some("F2"));
        assert_eq!(on_cpu("--collect-detailed-traces all"), Some("F3"));
    }

    #[test]
    fn versions_are_those_of_python_packages() {
        for version in ["0.31", "v1.0", "1!2", "0.32.0rc1", "1.0.post1", "7"] {
            assert!(is_version(version), "{version}");
        }
        for version in ["a", "0.31.x", "", "-1", "1..2"] {
            assert!(!is_version(version), "{version}");
        }
    }
}
